package lbnl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
)

// netDNS checks each name server of /etc/resolv.conf, or only SERVER: it must answer within
// SECONDS and resolve each NAME. It applies the search list as the C library does. Without a
// NAME, any answer is accepted. The check asks DNS only, not /etc/hosts or any other source in
// nsswitch.conf.
//
// It fails if no server is usable, or if the first server that answers does not know a NAME:
// the C library asks no further server then. It warns if one server of several is not usable,
// since that delays each lookup by seconds. Without -t, it warns if an answer takes more than
// 2 s.
//
//	node* || check_net_dns
//	node* || check_net_dns -t 0.5 slurmctl.cluster.example nfs1
type netDNS struct {
	Limit  time.Duration `opt:"t" toml:"seconds"` // time limit of an answer; 0: 2 s, and only warn
	Server string        `opt:"s" toml:"server"`  // address of a name server; empty: those of /etc/resolv.conf
	Names  []string      `arg:"*" toml:"names"`   // names to resolve
}

const netDNSName = "check_net_dns"

// usualDNS is the default time limit: half of the C library's timeout of one try
// (RES_TIMEOUT, 5 s), rounded down. Users notice a longer wait as a hang.
const usualDNS = 2 * time.Second

// patience is the shortest time to wait for an answer. It is long enough to send a question
// three times if packets are lost.
const patience = 3 * time.Second

func init() {
	const see = "Run dig @SERVER NAME on this node and on another. If only this node gets no answer, check its link, route and firewall; otherwise check the name server."
	checks.Register(checks.Info{
		Name:    netDNSName,
		Usage:   "[-t SECONDS] [-s SERVER] [NAME...]",
		Summary: "name servers answer in time and resolve names",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netDNS{} },
		Do: func() map[string]string {
			return map[string]string{
				"net.dns.none":   "Check the program that writes /etc/resolv.conf (NetworkManager, systemd-resolved, cloud-init): it lists no name server. Remove the line on a node without DNS.",
				"net.dns.server": see,
				"net.dns.failed": "Read the name server's log: it cannot reach its upstream servers, or it refuses requests from this node.",
				"net.dns.name":   "Check the name, the search list of /etc/resolv.conf, and the zone: the server reports that the name does not exist or has no address.",
				"net.dns.slow":   "Check the load of the name server and whether its upstream servers answer. " + see,
				"net.dns.config": "Correct the line of /etc/resolv.conf: the C library silently ignores it.",
			}
		},
	})
}

func (c *netDNS) Validate() error {
	if _, err := netip.ParseAddr(c.Server); c.Server != "" && err != nil {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Server, Want: "the address of a name server"}
	}
	return nil
}

// dnsVerdict is the result for one server; an empty code means that the server is usable.
type dnsVerdict struct {
	server string
	f      checks.Finding
	text   string
	final  bool // the C library accepts its answer and asks no further server
}

func (c *netDNS) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	env.At("read /etc/resolv.conf")
	conf, err := network.ReadResolvConf(env.Host)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return checks.Unreadable(err)
	}
	servers := conf.Servers
	if c.Server != "" {
		servers, conf.Bad = []string{c.Server}, nil
	}
	var findings []checks.Finding
	for _, bad := range conf.Bad {
		findings = append(findings, c.finding(bad, checks.Finding{Code: "net.dns.config", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "an address", Got: bad}, "name server of /etc/resolv.conf"))
	}
	if len(servers) == 0 {
		f := checks.Finding{Code: "net.dns.none", Severity: checks.Skip}
		if len(c.Names) > 0 {
			f.Severity, f.Remedy = checks.Fail, checks.FixConfig
		}
		return append(findings, f.Describe(netDNSName, "no name server in /etc/resolv.conf"))
	}
	env.At("ask %s", strings.Join(servers, ", "))
	env.Fact("%s", strings.Join(servers, ", "))
	return append(findings, c.judge(c.askAll(ctx, env, servers, conf))...)
}

// askAll asks all servers at the same time, so that a silent server does not delay the others.
func (c *netDNS) askAll(ctx context.Context, env *checks.Env, servers []string, conf network.ResolvConf) []dnsVerdict {
	verdicts := make([]dnsVerdict, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			verdicts[i] = c.ask(ctx, env, s, conf)
			verdicts[i].server = s
		})
	}
	wg.Wait()
	return verdicts
}

// ask asks one server for every name, up to the first that fails.
func (c *netDNS) ask(ctx context.Context, env *checks.Env, server string, conf network.ResolvConf) dnsVerdict {
	if len(c.Names) == 0 {
		_, v := c.question(ctx, env, server, ".", network.DNSTypeNS)
		return v
	}
	slow := dnsVerdict{final: true}
	for _, name := range c.Names {
		known, worst := false, dnsVerdict{}
		for _, candidate := range conf.Candidates(name) {
			code, answers, v := c.lookUp(ctx, env, server, candidate)
			switch {
			case v.f.Code == "net.dns.slow" && slow.f.Code == "":
				slow = v
			case v.f.Code != "" && v.f.Code != "net.dns.slow":
				return v
			}
			if known = answers > 0; known {
				break
			}
			lacks := checks.Finding{Severity: checks.Fail, Want: "an address", Got: dnsCode(code)}
			if code == network.DNSNoError || code == network.DNSNoName {
				lacks.Code = "net.dns.name"
			} else {
				lacks.Code = "net.dns.failed"
			}
			if worst.f.Code != "net.dns.failed" { // SERVFAIL and REFUSED take precedence: the next server can still know the name
				worst = dnsVerdict{f: lacks, text: name, final: lacks.Code == "net.dns.name"}
			}
		}
		if !known {
			return worst
		}
	}
	return slow
}

// lookUp asks for the IPv4 addresses of a name, and for the IPv6 addresses if there are none.
func (c *netDNS) lookUp(ctx context.Context, env *checks.Env, server, name string) (code, answers int, v dnsVerdict) {
	for _, kind := range []uint16{network.DNSTypeA, network.DNSTypeAAAA} {
		var reply network.DNSReply
		if reply, v = c.question(ctx, env, server, name, kind); v.f.Code != "" && v.f.Code != "net.dns.slow" {
			break
		}
		if code, answers = reply.Code, reply.Answers; code != network.DNSNoError || answers > 0 {
			break // a name that does not exist has no IPv6 address either
		}
	}
	return code, answers, v
}

// question sends one question to one server. The verdict is about a missing or a late answer.
func (c *netDNS) question(ctx context.Context, env *checks.Env, server, name string, kind uint16) (network.DNSReply, dnsVerdict) {
	limit, severity := c.Limit, checks.Fail
	if limit <= 0 {
		limit, severity = usualDNS, checks.Warn
	}
	ctx, full, cancel := withinRun(ctx, max(patience, limit+time.Second))
	defer cancel()
	reply, took, err := network.AskNameServer(ctx, env.Host, server, name, kind)
	f := checks.Finding{Code: "net.dns.server", Severity: checks.Fail, Want: "an answer"}
	switch {
	case errors.Is(err, network.ErrNoReply) && !full, errors.Is(err, fs.ErrNotExist), errors.Is(err, network.ErrNotRecorded):
		f.Severity, f.Want = checks.Unknown, ""
		return reply, dnsVerdict{f: f, text: "not checked: " + err.Error()}
	case errors.Is(err, network.ErrNoReply):
		f.Got = "none"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Got = "port 53 closed"
	case err != nil:
		f.Got = err.Error()
	case took > limit:
		f = checks.Finding{Code: "net.dns.slow", Severity: severity, Want: fmt.Sprintf("at most %gs", limit.Seconds()), Got: fmt.Sprintf("%.3gs", took.Seconds())}
		return reply, dnsVerdict{f: f, text: "answer", final: true}
	default:
		return reply, dnsVerdict{final: true}
	}
	return reply, dnsVerdict{f: f, text: "name server"}
}

// withinRun limits a call to a time and to 0.3 s before the deadline of ctx. full reports
// whether the call has all of that time.
func withinRun(ctx context.Context, limit time.Duration) (within context.Context, full bool, cancel context.CancelFunc) {
	const margin = 300 * time.Millisecond
	end, full := time.Now().Add(limit), true
	if d, ok := ctx.Deadline(); ok && d.Add(-margin).Before(end) {
		end, full = d.Add(-margin), false
	}
	within, cancel = context.WithDeadline(ctx, end)
	return within, full, cancel
}

// judge weighs the servers in the order of the C library, which stops at the first answer that
// it accepts.
func (c *netDNS) judge(verdicts []dnsVerdict) (findings []checks.Finding) {
	usable := false
	for _, v := range verdicts {
		usable = usable || v.f.Code == "" || v.f.Severity == checks.Unknown || v.f.Code == "net.dns.slow" && v.f.Severity == checks.Warn
	}
	answered := false
	for _, v := range verdicts {
		f := v.f
		decides := v.final && !answered && f.Code == "net.dns.name" // the C library asks no further server
		if f.Severity == checks.Fail && usable && !decides {
			f.Severity = checks.Warn
		}
		answered = answered || v.final
		if f.Code != "" {
			findings = append(findings, c.finding(v.server, f, v.text))
		}
	}
	return findings
}

func (c *netDNS) finding(server string, f checks.Finding, text string) checks.Finding {
	f.Device = checks.Device{Kind: "nameserver", Name: server}
	return f.Describe(netDNSName, "%s", text)
}

// dnsCode describes a response code, with the name that dig prints.
func dnsCode(code int) string {
	switch code {
	case network.DNSNoError:
		return "no record (NOERROR)"
	case network.DNSFailure:
		return "a failure (SERVFAIL)"
	case network.DNSNoName:
		return "no such name (NXDOMAIN)"
	case network.DNSRefused:
		return "a refusal (REFUSED)"
	}
	return fmt.Sprintf("code %d", code)
}
