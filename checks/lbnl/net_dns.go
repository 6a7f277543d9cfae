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

// netDNS checks the name servers of /etc/resolv.conf, each by itself, or SERVER
// alone: that it answers within SECONDS, and that it knows each NAME, with the search
// list as the C library has it. Without a NAME any answer will do. It asks DNS, and
// not /etc/hosts or whatever else nsswitch.conf names.
//
// It fails if no server will do, or if the first that answers does not know a NAME,
// for then nobody else is asked. One bad server of several is warned of: it costs
// each look-up seconds. So is, without -t, an answer that took two.
//
//	node* || check_net_dns
//	node* || check_net_dns -t 0.5 slurmctl.cluster.example nfs1
type netDNS struct {
	Limit  time.Duration `opt:"t" toml:"seconds"` // within which a server must answer
	Server string        `opt:"s" toml:"server"`  // its address; none: those of /etc/resolv.conf
	Names  []string      `arg:"*" toml:"names"`   // the names it must know
}

const netDNSName = "check_net_dns"

// usualDNS is half of what the C library waits for a server before it asks the next,
// or the same again (RES_TIMEOUT, 5 s), rounded down: users call that a hang.
const usualDNS = 2 * time.Second

// patience is how long an answer is waited for at least. A question whose packet was
// lost has been asked three times by then.
const patience = 3 * time.Second

func init() {
	const see = "dig @SERVER NAME from this node and from another: if only this one gets no answer see its link, route and firewall; else the name server."
	checks.Register(checks.Info{
		Name:    netDNSName,
		Usage:   "[-t SECONDS] [-s SERVER] [NAME...]",
		Summary: "name servers answer in time, and know names",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netDNS{} },
		Do: func() map[string]string {
			return map[string]string{
				"net.dns.none":   "/etc/resolv.conf has no name server: see what writes it (NetworkManager, systemd-resolved, cloud-init). A node without DNS needs no such line.",
				"net.dns.server": "The server is not usable, or was not asked within the time of the run: " + see,
				"net.dns.failed": "The server answers, but has no answer to give: it cannot reach those that it asks, or does not serve this node. See its log.",
				"net.dns.name":   "The server says that there is no such name, or that it has no address: see the name, the search list of /etc/resolv.conf, and the zone.",
				"net.dns.slow":   "The server is busy, or asks others that do not answer. " + see,
				"net.dns.config": "Correct the line of /etc/resolv.conf: the C library passes it over without a word.",
			}
		},
	})
}

// Bind reads the words, and refuses a server that is no address.
func (c *netDNS) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *netDNS) Validate() error {
	if _, err := netip.ParseAddr(c.Server); c.Server != "" && err != nil {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Server, Want: "the address of a name server"}
	}
	return nil
}

// dnsVerdict is what is wrong with a server; without a code nothing is.
type dnsVerdict struct {
	server string
	f      checks.Finding
	text   string
	final  bool // the C library takes its answer, and asks nobody else
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

// askAll asks all servers at once, so that a silent one costs the others nothing.
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

// ask asks one server for every name, until one is not right.
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
			if worst.f.Code != "net.dns.failed" { // what a server does not know the next may
				worst = dnsVerdict{f: lacks, text: name, final: lacks.Code == "net.dns.name"}
			}
		}
		if !known {
			return worst
		}
	}
	return slow
}

// lookUp asks for the addresses of a name: those of IPv4, and where there are none
// those of IPv6.
func (c *netDNS) lookUp(ctx context.Context, env *checks.Env, server, name string) (code, answers int, v dnsVerdict) {
	for _, kind := range []uint16{network.DNSTypeA, network.DNSTypeAAAA} {
		var reply network.DNSReply
		if reply, v = c.question(ctx, env, server, name, kind); v.f.Code != "" && v.f.Code != "net.dns.slow" {
			break
		}
		if code, answers = reply.Code, reply.Answers; code != network.DNSNoError || answers > 0 {
			break // a name that is not there has no address of any kind
		}
	}
	return code, answers, v
}

// question asks one server one thing. What is wrong is that there is no answer, or a
// late one.
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
		return reply, dnsVerdict{f: f, text: "could not tell: " + err.Error()}
	case errors.Is(err, network.ErrNoReply):
		f.Got = "none"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Got = "nobody listens on port 53"
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

// withinRun bounds a call by a time, and by the end of the step, a little before it.
// full says that the call has all of that time.
func withinRun(ctx context.Context, limit time.Duration) (within context.Context, full bool, cancel context.CancelFunc) {
	const margin = 300 * time.Millisecond
	end, full := time.Now().Add(limit), true
	if d, ok := ctx.Deadline(); ok && d.Add(-margin).Before(end) {
		end, full = d.Add(-margin), false
	}
	within, cancel = context.WithDeadline(ctx, end)
	return within, full, cancel
}

// judge weighs the servers as the C library asks them, one after the other: until
// one has given an answer that it takes.
func (c *netDNS) judge(verdicts []dnsVerdict) (findings []checks.Finding) {
	usable := false
	for _, v := range verdicts {
		usable = usable || v.f.Code == "" || v.f.Severity == checks.Unknown || v.f.Code == "net.dns.slow" && v.f.Severity == checks.Warn
	}
	answered := false
	for _, v := range verdicts {
		f := v.f
		decides := v.final && !answered && f.Code == "net.dns.name" // nobody behind it is asked
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

// dnsCode is what a code means, with the word that dig has for it.
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
