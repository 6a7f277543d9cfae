package fabric

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// The interfaces that check_eth_link judges, and how it compares them.

// ethTarget is an interface to judge.
type ethTarget struct {
	*network.NetIf

	named bool           // named on the line or with the default route, not only a part of another
	exact bool           // named without a glob
	upper *network.NetIf // the interface that it is a part of; nil: none
}

// find collects the interfaces to judge.
func (r *ethRun) find() error {
	names, err := network.NetIfs(r.env.Host)
	if err != nil {
		return err
	}
	if len(r.Names) == 0 {
		found, err := network.ReadDefaultRoutes(r.env.Host)
		if err != nil {
			return err
		}
		routes := found.All()
		under := map[string]bool{}
		for dev := range routes {
			for _, l := range network.ReadNetIf(r.env.Host, dev).Lower {
				under[l] = true
			}
		}
		for _, dev := range slices.Sorted(maps.Keys(routes)) {
			if n := network.ReadNetIf(r.env.Host, dev); !under[dev] && n.Type != network.LinkLoopback {
				r.add(&ethTarget{NetIf: &n, named: true})
			}
		}
		return nil
	}
	for _, word := range r.Names {
		found := false
		for _, name := range names {
			if name != word && !match.Glob(name, word) {
				continue
			}
			n := network.ReadNetIf(r.env.Host, name)
			if name != word && (n.Type == network.LinkLoopback || n.PCI != "" && pci.ReadFunction(r.env.Host, n.PCI).VF) {
				continue
			}
			found = true
			r.add(&ethTarget{NetIf: &n, named: true, exact: name == word})
		}
		if !found {
			r.say(checks.Device{Kind: "netdev", Name: word}, checks.Finding{Code: "eth.missing", Severity: checks.Fail, Want: word, Got: "none"}, "no such interface")
		}
	}
	if len(r.targets) == 0 { // no name on the line exists, so the line is the likelier cause
		for i := range r.findings {
			r.findings[i].Remedy = checks.FixConfig
		}
	}
	return nil
}

// add adds an interface, and its parts down to the cards.
func (r *ethRun) add(t *ethTarget) {
	for _, old := range r.targets {
		if old.Name == t.Name {
			if old.upper == nil {
				old.upper = t.upper
			}
			old.named, old.exact = old.named || t.named, old.exact || t.exact
			return
		}
	}
	if len(r.targets) >= 1024 { // for example a bridge of containers
		return
	}
	r.targets = append(r.targets, t)
	for _, name := range t.Lower {
		if n := network.ReadNetIf(r.env.Host, name); n.Physical || len(n.Lower) > 0 {
			r.add(&ethTarget{NetIf: &n, upper: t.NetIf})
		}
	}
}

// compare warns of cards that are slower than most cards of their model.
func (r *ethRun) compare() {
	models := map[string][]*ethTarget{}
	for _, t := range r.targets {
		if t.PCI != "" && t.Speed > 0 && t.Err == nil && linkFault(t.NetIf) == "" {
			p := pci.ReadFunction(r.env.Host, t.PCI)
			model := p.Vendor + ":" + p.Device
			models[model] = append(models[model], t)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		count := map[int]int{}
		for _, t := range models[model] {
			count[t.Speed]++
		}
		usual := slices.MaxFunc(slices.Collect(maps.Keys(count)), func(a, b int) int { return cmp.Or(count[a]-count[b], a-b) })
		for _, t := range models[model] {
			if t.Speed < usual {
				r.say(netDevice(t.NetIf), checks.Finding{Code: "eth.differ", Severity: checks.Warn, Remedy: checks.CheckCable, Want: mbps(usual), Got: mbps(t.Speed)}, "slower than other cards of its model")
			}
		}
	}
}
