package lbnl

import (
	"context"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// netPing checks that each target answers a ping. It runs ping(8) and evaluates only
// its exit status. Without options, ping sends one packet with a TTL of 2 (at most one
// router) and waits 1 s. An empty value passes no such option to ping.
//
//	node* || check_net_ping -I ib0 -W 3 10.0.0.1 nfs1
type netPing struct {
	Targets   []string `arg:"*" toml:"targets"`   // host names or addresses
	Interface string   `opt:"I" toml:"interface"` // source: a device or an address
	Interval  string   `opt:"i" toml:"interval"`  // seconds between packets
	Size      string   `opt:"s" toml:"size"`      // bytes of data in a packet
	TTL       string   `opt:"t" toml:"ttl"`       // maximum number of hops
	Count     string   `opt:"c" toml:"count"`     // packets to send
	Deadline  string   `opt:"w" toml:"deadline"`  // seconds until ping exits
	Timeout   string   `opt:"W" toml:"timeout"`   // seconds to wait for an answer
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_net_ping",
		Usage:   "[-I INTERFACE] [-i INTERVAL] [-s SIZE] [-t TTL] [-c COUNT] [-w DEADLINE] [-W TIMEOUT] TARGET ...",
		Summary: "hosts answer a ping",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &netPing{TTL: "2", Count: "1", Deadline: "1"} },
		// Other hosts see a ping, so a run sends none that LBNL NHC would not send, for example
		// after a failure.
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_net_ping"),
		Do: func() map[string]string {
			return map[string]string{
				"net.ping": "Ping the target by hand, from this node and from another. If this node reaches no host, check its link and route: ip -s link, ip route. " +
					"A target behind more than one router needs a higher -t.",
			}
		},
	})
}

func (c *netPing) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	if strings.Join(c.Targets, " ") == "" {
		return []checks.Finding{checks.Usage("check_net_ping:  No target(s) given for ping.", "")}
	}
	for _, target := range c.Targets {
		argv := append(c.command(), target)
		env.At("run %s", strings.Join(argv, " "))
		x := env.Host.Run(ctx, env.Command(argv...))
		if x.Status != 0 || x.Stuck {
			return []checks.Finding{checks.Finding{
				Code:     "net.ping",
				Severity: checks.Fail,
				Device:   checks.Device{Kind: "host", Name: target},
				Want:     "an answer",
				Got:      pingStatus(x),
			}.Phrase("check_net_ping", "No response received from %s", target)}
		}
	}
	return nil
}

// command returns the ping command in LBNL NHC's order of options. A value with blanks becomes
// several arguments, as in LBNL NHC.
func (c *netPing) command() []string {
	argv := []string{"ping", "-q", "-n"}
	for _, o := range []struct{ flag, value string }{
		{"-I", c.Interface},
		{"-i", c.Interval},
		{"-s", c.Size},
		{"-t", c.TTL},
		{"-c", c.Count},
		{"-w", c.Deadline},
		{"-W", c.Timeout},
	} {
		if o.value != "" {
			argv = append(append(argv, o.flag), strings.Fields(o.value)...)
		}
	}
	return argv
}

// pingStatus describes the exit status of ping(8).
func pingStatus(x probe.Exit) string {
	switch {
	case x.Err != nil:
		return x.Err.Error()
	case x.Status == 1:
		return "no answer"
	}
	return "ping ended with status " + strconv.Itoa(x.Status)
}
