package checks

import (
	"context"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNetDNS(t *testing.T) { testCheck(t, "check_net_dns") }

var _ = table("check_net_dns", func(name string) []scenario {
	const first, second = "10.0.0.53", "10.0.0.54"
	says := func(server string, severity Severity, code, want, got, text string) Finding {
		f := Finding{Code: "net.dns." + code, Severity: severity, Device: Device{Kind: "nameserver", Name: server}, Want: want, Got: got}
		f.Message = name + ":  " + server + ": " + text + wantGot(f)
		return f
	}
	answers := func(server string, lines ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Answers(server, lines...) }
	}
	both := func(lines ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Answers(first, lines...).Answers(second, lines...) }
	}
	silent := func(severity Severity, server string) Finding {
		return says(server, severity, "server", "an answer", "none", "name server")
	}
	unknown := func(server string, severity Severity) Finding {
		return says(server, severity, "name", "an address", "no such name (NXDOMAIN)", "nfs9")
	}
	conf := func(text string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Files["etc/resolv.conf"] = text }
	}
	noServer := Finding{Code: "net.dns.none", Severity: Skip, Message: name + ":  no name server in /etc/resolv.conf"}
	noServerFails := noServer
	noServerFails.Severity, noServerFails.Remedy = Fail, FixConfig
	bad := says("dns1", Warn, "config", "an address", "dns1", "name server of /etc/resolv.conf")
	bad.Remedy = FixConfig
	return []scenario{
		onFabric("healthy", nil, nil),
		onFabric("names", of("login", "login.cluster.example", "login.cluster.example.", "six"), nil),
		onFabric("as wanted", of("-t", "0.5", "-s", second, "login"), nil).orTable(map[string]any{"seconds": 0.5, "server": second, "names": []any{"login"}}),
		onFabric("any answer is one", nil, both("* * 0.001 5 0")),
		onFabric("nobody answers", nil, both(), silent(Fail, first), silent(Fail, second)),
		onFabric("the first does not answer", of("login"), answers(first), silent(Warn, first)),
		onFabric("the second does not answer", nil, answers(second), silent(Warn, second)),
		onFabric("the one that is named does not answer", of("-s", second), answers(second), silent(Fail, second)),
		onFabric("nobody listens", nil, both("* * 0.001 refused 0"),
			says(first, Fail, "server", "an answer", "nobody listens on port 53", "name server"), says(second, Fail, "server", "an answer", "nobody listens on port 53", "name server")),
		onFabric("garbage is answered", of("login"), answers(first, "* * 0.001 garbage 0"), says(first, Warn, "server", "an answer", probe.ErrBadReply.Error(), "name server")),
		onFabric("no such name", of("login", "nfs9"), nil, unknown(first, Fail), unknown(second, Fail)),
		onFabric("the first does not know a name, the second does", of("nfs9"), answers(second, "nfs9.cluster.example. A 0.001 0 1", "* * 0.001 3 0"), unknown(first, Fail)),
		onFabric("the second does not know a name", of("nfs9"), answers(first, "nfs9.cluster.example. A 0.001 0 1", "* * 0.001 3 0"), unknown(second, Warn)),
		onFabric("the first is silent, the second does not know a name", of("nfs9"), answers(first), silent(Fail, first), unknown(second, Fail)),
		onFabric("a name without an address", of("-s", first, "nfs9."), answers(first, "nfs9. * 0.001 0 0"), says(first, Fail, "name", "an address", "no record (NOERROR)", "nfs9.")),
		onFabric("both fail", of("login"), both("* * 0.001 2 0"),
			says(first, Fail, "failed", "an address", "a failure (SERVFAIL)", "login"), says(second, Fail, "failed", "an address", "a failure (SERVFAIL)", "login")),
		onFabric("the first fails", of("login"), answers(first, "* * 0.001 2 0"), says(first, Warn, "failed", "an address", "a failure (SERVFAIL)", "login")),
		onFabric("one candidate fails, the other is right", of("-s", first, "login"), answers(first, "login. A 0.001 0 1", "* * 0.001 2 0")),
		onFabric("the first refuses", of("login"), answers(first, "* * 0.001 5 0"), says(first, Warn, "failed", "an address", "a refusal (REFUSED)", "login")),
		onFabric("another code", of("login"), answers(first, "* * 0.001 4 0"), says(first, Warn, "failed", "an address", "code 4", "login")),
		onFabric("slow", nil, both("* * 2.5 0 13"), says(first, Warn, "slow", "at most 2s", "2.5s", "answer"), says(second, Warn, "slow", "at most 2s", "2.5s", "answer")),
		onFabric("slower than allowed", of("-t", "0.5", "login"), both("* * 0.7 0 1"),
			says(first, Fail, "slow", "at most 0.5s", "0.7s", "answer"), says(second, Fail, "slow", "at most 0.5s", "0.7s", "answer")),
		onFabric("one is slower than allowed", of("-t", "0.5"), answers(first, "* * 0.7 0 1"), says(first, Warn, "slow", "at most 0.5s", "0.7s", "answer")),
		onFabric("slow, and no such name", of("-s", first, "nfs9"), answers(first, "* * 2.5 3 0"), unknown(first, Fail)),
		onFabric("no resolv.conf", nil, func(n *fakesys.Node) { delete(n.Files, "etc/resolv.conf") }, noServer),
		onFabric("no name server, but names", of("login"), conf("search cluster.example\n"), noServerFails),
		onFabric("a name server without an address", nil, conf("nameserver dns1\nnameserver 10.0.0.53\n"), bad),
		onFabric("only one without an address", nil, conf("nameserver dns1\n"), bad, noServer),
		odd(onFabric("not recorded", nil, conf("nameserver 10.0.0.99\n"),
			says("10.0.0.99", Unknown, "server", "", "", "could not tell: read /recorded/dns/10.0.0.99: no such file or directory"))),
		odd(onFabric("garbage is recorded", nil, both("* * soon 0 0"),
			says(first, Unknown, "server", "", "", "could not tell: not recorded: \"* * soon 0 0\\n\""), says(second, Unknown, "server", "", "", "could not tell: not recorded: \"* * soon 0 0\\n\""))),
		odd(onFabric("unreadable", nil, func(n *fakesys.Node) {
			delete(n.Files, "etc/resolv.conf")
			n.Files["etc/resolv.conf/"] = ""
		}, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /etc/resolv.conf: is a directory"})),
		odd(onFabric("garbage in resolv.conf", nil, conf("\xff\xfe\x00 nameserver\nnameserver 10.0.0.53\n"))),
	}
})

func TestNetDNSWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{of("-t", "soon"), of("-t", "-1"), of("-s", "dns1")} {
		if err := Bind(&netDNS{}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
}

// A step that has no time left says that it could not tell, and no more.
func TestNetDNSWithinRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		left time.Duration
		full bool
	}{{0, true}, {time.Minute, true}, {time.Second, false}} {
		ctx := t.Context()
		if c.left > 0 {
			ctx = WithDeadline(ctx, time.Now().Add(c.left))
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
