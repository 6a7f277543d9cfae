package lbnl

import (
	"context"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNetDNS(t *testing.T) { checktest.Run(t, "check_net_dns") }

var _ = checktest.Table("check_net_dns", func(name string) []checktest.Scenario {
	const first, second = "10.0.0.53", "10.0.0.54"
	says := func(server string, severity checks.Severity, code, want, got, text string) checks.Finding {
		f := checks.Finding{Code: "net.dns." + code, Severity: severity, Device: checks.Device{Kind: "nameserver", Name: server}, Want: want, Got: got}
		f.Message = name + ":  " + server + ": " + text + checktest.WantGot(f)
		return f
	}
	answers := func(server string, lines ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Answers(server, lines...) }
	}
	both := func(lines ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Answers(first, lines...).Answers(second, lines...) }
	}
	silent := func(severity checks.Severity, server string) checks.Finding {
		return says(server, severity, "server", "an answer", "none", "name server")
	}
	unknown := func(server string, severity checks.Severity) checks.Finding {
		return says(server, severity, "name", "an address", "no such name (NXDOMAIN)", "nfs9")
	}
	conf := func(text string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Files["etc/resolv.conf"] = text }
	}
	noServer := checks.Finding{Code: "net.dns.none", Severity: checks.Skip, Message: name + ":  no name server in /etc/resolv.conf"}
	noServerFails := noServer
	noServerFails.Severity, noServerFails.Remedy = checks.Fail, checks.FixConfig
	bad := says("dns1", checks.Warn, "config", "an address", "dns1", "name server of /etc/resolv.conf")
	bad.Remedy = checks.FixConfig
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnFabric("names", checktest.Of("login", "login.cluster.example", "login.cluster.example.", "six"), nil),
		checktest.OnFabric("as wanted", checktest.Of("-t", "0.5", "-s", second, "login"), nil).OrTable(map[string]any{"seconds": 0.5, "server": second, "names": []any{"login"}}),
		checktest.OnFabric("any answer is one", nil, both("* * 0.001 5 0")),
		checktest.OnFabric("no server answers", nil, both(), silent(checks.Fail, first), silent(checks.Fail, second)),
		checktest.OnFabric("the first does not answer", checktest.Of("login"), answers(first), silent(checks.Warn, first)),
		checktest.OnFabric("the second does not answer", nil, answers(second), silent(checks.Warn, second)),
		checktest.OnFabric("the one that is named does not answer", checktest.Of("-s", second), answers(second), silent(checks.Fail, second)),
		checktest.OnFabric("port 53 is closed", nil, both("* * 0.001 refused 0"),
			says(first, checks.Fail, "server", "an answer", "port 53 closed", "name server"), says(second, checks.Fail, "server", "an answer", "port 53 closed", "name server")),
		checktest.OnFabric("garbage is answered", checktest.Of("login"), answers(first, "* * 0.001 garbage 0"), says(first, checks.Warn, "server", "an answer", network.ErrBadReply.Error(), "name server")),
		checktest.OnFabric("no such name", checktest.Of("login", "nfs9"), nil, unknown(first, checks.Fail), unknown(second, checks.Fail)),
		checktest.OnFabric("the first does not know a name, the second does", checktest.Of("nfs9"), answers(second, "nfs9.cluster.example. A 0.001 0 1", "* * 0.001 3 0"), unknown(first, checks.Fail)),
		checktest.OnFabric("the second does not know a name", checktest.Of("nfs9"), answers(first, "nfs9.cluster.example. A 0.001 0 1", "* * 0.001 3 0"), unknown(second, checks.Warn)),
		checktest.OnFabric("the first is silent, the second does not know a name", checktest.Of("nfs9"), answers(first), silent(checks.Fail, first), unknown(second, checks.Fail)),
		checktest.OnFabric("a name without an address", checktest.Of("-s", first, "nfs9."), answers(first, "nfs9. * 0.001 0 0"), says(first, checks.Fail, "name", "an address", "no record (NOERROR)", "nfs9.")),
		checktest.OnFabric("both fail", checktest.Of("login"), both("* * 0.001 2 0"),
			says(first, checks.Fail, "failed", "an address", "a failure (SERVFAIL)", "login"), says(second, checks.Fail, "failed", "an address", "a failure (SERVFAIL)", "login")),
		checktest.OnFabric("the first fails", checktest.Of("login"), answers(first, "* * 0.001 2 0"), says(first, checks.Warn, "failed", "an address", "a failure (SERVFAIL)", "login")),
		checktest.OnFabric("one candidate fails, the other is right", checktest.Of("-s", first, "login"), answers(first, "login. A 0.001 0 1", "* * 0.001 2 0")),
		checktest.OnFabric("the first refuses", checktest.Of("login"), answers(first, "* * 0.001 5 0"), says(first, checks.Warn, "failed", "an address", "a refusal (REFUSED)", "login")),
		checktest.OnFabric("another code", checktest.Of("login"), answers(first, "* * 0.001 4 0"), says(first, checks.Warn, "failed", "an address", "code 4", "login")),
		checktest.OnFabric("slow", nil, both("* * 2.5 0 13"), says(first, checks.Warn, "slow", "at most 2s", "2.5s", "answer"), says(second, checks.Warn, "slow", "at most 2s", "2.5s", "answer")),
		checktest.OnFabric("slower than allowed", checktest.Of("-t", "0.5", "login"), both("* * 0.7 0 1"),
			says(first, checks.Fail, "slow", "at most 0.5s", "0.7s", "answer"), says(second, checks.Fail, "slow", "at most 0.5s", "0.7s", "answer")),
		checktest.OnFabric("one is slower than allowed", checktest.Of("-t", "0.5"), answers(first, "* * 0.7 0 1"), says(first, checks.Warn, "slow", "at most 0.5s", "0.7s", "answer")),
		checktest.OnFabric("slow, and no such name", checktest.Of("-s", first, "nfs9"), answers(first, "* * 2.5 3 0"), unknown(first, checks.Fail)),
		checktest.OnFabric("no resolv.conf", nil, func(n *fakesys.Node) { delete(n.Files, "etc/resolv.conf") }, noServer),
		checktest.OnFabric("no name server, but names", checktest.Of("login"), conf("search cluster.example\n"), noServerFails),
		checktest.OnFabric("a name server without an address", nil, conf("nameserver dns1\nnameserver 10.0.0.53\n"), bad),
		checktest.OnFabric("only one without an address", nil, conf("nameserver dns1\n"), bad, noServer),
		checktest.Odd(checktest.OnFabric("not recorded", nil, conf("nameserver 10.0.0.99\n"),
			says("10.0.0.99", checks.Unknown, "server", "", "", "not checked: read /recorded/dns/10.0.0.99: no such file or directory"))),
		checktest.Odd(checktest.OnFabric("garbage is recorded", nil, both("* * soon 0 0"),
			says(first, checks.Unknown, "server", "", "", "not checked: not recorded: \"* * soon 0 0\\n\""), says(second, checks.Unknown, "server", "", "", "not checked: not recorded: \"* * soon 0 0\\n\""))),
		checktest.Odd(checktest.OnFabric("unreadable", nil, func(n *fakesys.Node) {
			delete(n.Files, "etc/resolv.conf")
			n.Files["etc/resolv.conf/"] = ""
		}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /etc/resolv.conf: is a directory"})),
		checktest.Odd(checktest.OnFabric("garbage in resolv.conf", nil, conf("\xff\xfe\x00 nameserver\nnameserver 10.0.0.53\n"))),
	}
})

func TestNetDNSWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{checktest.Of("-t", "soon"), checktest.Of("-t", "-1"), checktest.Of("-s", "dns1")} {
		if err := checks.Bind(&netDNS{}, words); err == nil {
			t.Errorf("%q is accepted", words)
		}
	}
}

// A step without time left reports Unknown.
func TestNetDNSWithinRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		left time.Duration
		full bool
	}{{0, true}, {time.Minute, true}, {time.Second, false}} {
		ctx := t.Context()
		if c.left > 0 {
			ctx = checks.WithDeadline(ctx, time.Now().Add(c.left))
		}
		until, _ := ctx.Deadline()
		ctx, full, cancel := withinRun(ctx, patience)
		defer cancel()
		if end, ok := ctx.Deadline(); full != c.full || !ok || c.left > 0 && end.After(until) {
			t.Errorf("%s: %v, full %v", c.left, end, full)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if within, full, stop := withinRun(ctx, patience); full || within == nil {
		t.Error("a run that ends sooner gives all of the time")
	} else {
		stop()
	}
}
