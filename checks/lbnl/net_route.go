package lbnl

import (
	"context"
	"net/netip"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// netRoute checks that a route exists: the default route of IPv4 or IPv6; the route to an
// ADDRESS that the kernel would choose (longest prefix, then lowest metric); or the route of
// exactly a PREFIX. "0.0.0.0/0" and "::/0" are the default routes of IPv4 and IPv6. With -i
// the route must use that interface, a name or a glob, and with -g that gateway. A route that
// drops packets (blackhole, unreachable, prohibit) does not count.
//
// It reads the main IPv4 table, not the tables that rules select. Of an IPv4 route with several
// next hops it sees only the first.
//
//	node* || check_net_route
//	node* || check_net_route -d 10.20.0.0/16 -i 'bond*' -g 10.0.0.1
type netRoute struct {
	To        string `opt:"d" toml:"destination"` // default, an address or a prefix
	Interface string `opt:"i" toml:"interface"`   // the interface of the route, or a glob
	Gateway   string `opt:"g" toml:"gateway"`     // the address of the next router
}

const (
	netRouteName = "check_net_route"
	toDefault    = "default"
)

func init() {
	const see = "Run ip route and ip -6 route, and check the network configuration: look for an expired DHCP lease or an interface that came up late."
	checks.Register(checks.Info{
		Name:    netRouteName,
		Usage:   "[-d DESTINATION] [-i INTERFACE] [-g GATEWAY]",
		Summary: "a route to a destination, or a default route, exists",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netRoute{To: toDefault} },
		Do: func() map[string]string {
			return map[string]string{
				"net.route.missing":   see,
				"net.route.nowhere":   "Remove the route that drops packets: ip route shows it as blackhole, unreachable or prohibit. If it is intended, remove the line.",
				"net.route.interface": see + " Check whether the expected interface is up.",
				"net.route.gateway":   see,
				"net.route.unread":    "Read the file that the message names, and report its line as a bug: the check cannot parse it, and it can be the expected route.",
			}
		},
	})
}

func (c *netRoute) Validate() error {
	if _, err := c.targets(); err != nil {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.To, Want: "default, an address or a prefix"}
	}
	if _, err := netip.ParseAddr(c.Gateway); c.Gateway != "" && err != nil {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Gateway, Want: "an address"}
	}
	return nil
}

// routeTarget is a destination that a route must reach.
type routeTarget struct {
	prefix netip.Prefix // a single address: /32 or /128
	exact  bool         // only a route of exactly this prefix counts
}

// targets returns the prefixes of the destination; a route to any of them is enough.
func (c *netRoute) targets() ([]routeTarget, error) {
	if c.To == toDefault || c.To == "" {
		return []routeTarget{{netip.PrefixFrom(netip.IPv4Unspecified(), 0), true}, {netip.PrefixFrom(netip.IPv6Unspecified(), 0), true}}, nil
	}
	if strings.Contains(c.To, "/") {
		p, err := netip.ParsePrefix(c.To)
		return []routeTarget{{p.Masked(), true}}, err
	}
	a, err := netip.ParseAddr(c.To)
	a = a.Unmap().WithZone("")
	return []routeTarget{{netip.PrefixFrom(a, a.BitLen()), false}}, err
}

func (c *netRoute) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /proc/net/route")
	list, err := network.Routes(env.Host)
	if err != nil && len(list) == 0 {
		return checks.Unreadable(err)
	}
	targets, _ := c.targets() // Bind has checked it
	missing := checks.Finding{Code: "net.route.missing", Severity: checks.Fail, Want: "a route", Got: "none"}
	worst := missing
	for _, t := range targets {
		best := bestRoutes(list, t)
		if len(best) == 0 {
			continue
		}
		f, ok := c.judge(best)
		if ok {
			env.Fact("%s by %s", orDefault(c.To), best[0].Dev)
			return nil
		}
		if worst == missing { // the first is the more specific
			worst = f
		}
	}
	if err != nil { // the expected route can be in the lines that were not read
		return []checks.Finding{c.finding(checks.Finding{Code: "net.route.unread", Severity: checks.Unknown}, "not checked: %v", err)}
	}
	return []checks.Finding{c.finding(worst, "route")}
}

// bestRoutes returns the routes that the kernel would choose; several if they are equal.
func bestRoutes(list []network.Route, t routeTarget) (best []network.Route) {
	for _, r := range list {
		if r.Prefix.Addr().Is4() != t.prefix.Addr().Is4() || t.exact && r.Prefix.Masked() != t.prefix || !t.exact && !r.Prefix.Masked().Contains(t.prefix.Addr()) {
			continue
		}
		if len(best) > 0 {
			b := best[0]
			if longer := r.Prefix.Bits() - b.Prefix.Bits(); longer < 0 || longer == 0 && r.Metric > b.Metric {
				continue
			} else if longer > 0 || r.Metric < b.Metric {
				best = best[:0]
			}
		}
		best = append(best, r)
	}
	return best
}

// judge checks the routes that the kernel would choose. One of several as expected is enough.
func (c *netRoute) judge(best []network.Route) (f checks.Finding, ok bool) {
	gateway, _ := netip.ParseAddr(c.Gateway) // Bind has checked it
	for _, r := range best {
		switch {
		case r.Nowhere:
			if r.Prefix.Bits() == 0 && r.Dev == "lo" && r.Prefix.Addr().Is6() { // the kernel adds it where no other exists
				return checks.Finding{Code: "net.route.missing", Severity: checks.Fail, Want: "a route", Got: "only the kernel's unreachable route"}, false
			}
			f = checks.Finding{Code: "net.route.nowhere", Severity: checks.Fail, Want: "a route", Got: "one that drops packets"}
		case c.Interface != "" && !match.Glob(r.Dev, c.Interface):
			f = checks.Finding{Code: "net.route.interface", Severity: checks.Fail, Want: c.Interface, Got: r.Dev}
		case c.Gateway != "" && r.Gateway != gateway.WithZone("").Unmap():
			f = checks.Finding{Code: "net.route.gateway", Severity: checks.Fail, Want: c.Gateway, Got: "none"}
			if r.Gateway.IsValid() {
				f.Got = r.Gateway.String()
			}
		default:
			return checks.Finding{}, true
		}
	}
	return f, false
}

func (c *netRoute) finding(f checks.Finding, format string, args ...any) checks.Finding {
	f.Device = checks.Device{Kind: "route", Name: orDefault(c.To)}
	return f.Describe(netRouteName, format, args...)
}

func orDefault(to string) string {
	if to == "" {
		return toDefault
	}
	return to
}
