package lbnl

import (
	"context"
	"net/netip"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// netRoute checks that there is a route: the default one, of IPv4 or IPv6; the one
// to an ADDRESS, as the kernel would choose it, the longest prefix before the lowest
// metric; or the one of a PREFIX, exactly that. "0.0.0.0/0" and "::/0" are the
// default ones of one kind. With -i it must lead over that interface, a name or a
// glob, and with -g to that gateway. A route that drops what is sent there
// (blackhole, unreachable, prohibit) is none.
//
// It reads the kernel's lists: IPv4's main table, without those that rules choose,
// and of an IPv4 route over several next hops the first.
//
//	node* || check_net_route
//	node* || check_net_route -d 10.20.0.0/16 -i 'bond*' -g 10.0.0.1
type netRoute struct {
	To        string `opt:"d" toml:"destination"` // default, an address or a prefix
	Interface string `opt:"i" toml:"interface"`   // the interface it leads over, or a glob
	Gateway   string `opt:"g" toml:"gateway"`     // the address of the next router
}

const (
	netRouteName = "check_net_route"
	toDefault    = "default"
)

func init() {
	const see = "See ip route and ip -6 route, and what configures the network: a lease that ran out, an interface that came up late."
	checks.Register(checks.Info{
		Name:    netRouteName,
		Usage:   "[-d DESTINATION] [-i INTERFACE] [-g GATEWAY]",
		Summary: "there is a route to a destination, or the default one",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netRoute{To: toDefault} },
		Do: func() map[string]string {
			return map[string]string{
				"net.route.missing":   see,
				"net.route.nowhere":   "Somebody has set a route that drops what is sent there: ip route shows it as blackhole, unreachable or prohibit. Take it away, or the line.",
				"net.route.interface": see + " Another interface has taken over: see whether the right one is up.",
				"net.route.gateway":   see,
				"net.route.unread":    "A line of the kernel's list of routes was not understood, and the route that is wanted may be in it: see the file, and report it.",
			}
		},
	})
}

// Bind reads the words, and refuses what is no destination.
func (c *netRoute) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
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

// routeTarget is what a route must fit.
type routeTarget struct {
	prefix netip.Prefix // of an address: it alone
	exact  bool         // a route of this prefix and no other will do
}

// targets are what the destination stands for: any of them will do.
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
	targets, _ := c.targets() // Bind has seen to it
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
		if worst == missing { // else the first says more
			worst = f
		}
	}
	if err != nil { // the one that is wanted may be among those
		return []checks.Finding{c.finding(checks.Finding{Code: "net.route.unread", Severity: checks.Unknown}, "could not tell: %v", err)}
	}
	return []checks.Finding{c.finding(worst, "route")}
}

// bestRoutes are those that the kernel would choose: several where they are alike.
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

// judge says what is wrong with the routes that the kernel would choose; one of
// several that is right is enough.
func (c *netRoute) judge(best []network.Route) (f checks.Finding, ok bool) {
	gateway, _ := netip.ParseAddr(c.Gateway) // Bind has seen to it
	for _, r := range best {
		switch {
		case r.Nowhere:
			if r.Prefix.Bits() == 0 && r.Dev == "lo" && r.Prefix.Addr().Is6() { // the kernel's own, where there is no other
				return checks.Finding{Code: "net.route.missing", Severity: checks.Fail, Want: "a route", Got: "the kernel's own, which leads nowhere"}, false
			}
			f = checks.Finding{Code: "net.route.nowhere", Severity: checks.Fail, Want: "a route", Got: "one that leads nowhere"}
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
