package fabric

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Of cards with several ports some are not cabled, for ever. Nothing on the node
// says which, but for the other cards and what the port has been before.

// portCard are the ports of one card, each a function or a port of one.
type portCard struct {
	ports []*Port
	up    int
}

// fatesOf says of each port that is not up what that means. Each port that the line
// names has to be up, and so has the only port of a card.
func fatesOf(r *portsRun) map[*Port]fate {
	fates := map[*Port]fate{}
	for _, p := range r.ports {
		if !checks.PortActive(p.IBPort) {
			fates[p] = fate{severity: checks.Fail}
		}
	}
	if len(r.c.Devices) > 0 || len(fates) == 0 {
		return fates
	}
	for _, cards := range cardsOf(r) {
		compareCards(r, cards, fates)
	}
	for p := range fates {
		if p.Left == spareLeft {
			fates[p] = fate{severity: checks.OK}
		}
	}
	for p, is := range fates {
		if is.severity == checks.Fail {
			continue
		}
		switch now, before := r.wasUp(p); {
		case now:
			fates[p] = fate{checks.Fail, "it was up earlier in this boot"}
		case before && is.severity == checks.OK:
			fates[p] = fate{checks.Warn, "it was up before the last boot"}
		}
	}
	return fates
}

// cardsOf are those with several ports, by kind. Planes are all cabled.
func cardsOf(r *portsRun) map[string][]*portCard {
	byAddress := map[string]*portCard{}
	var order []string
	for _, p := range r.ports {
		if p.PCI == "" || p.Plane > 0 {
			continue
		}
		at := card(p.PCI)
		if byAddress[at] == nil {
			byAddress[at] = &portCard{}
			order = append(order, at)
		}
		c := byAddress[at]
		if c.ports = append(c.ports, p); checks.PortActive(p.IBPort) {
			c.up++
		}
	}
	kinds := map[string][]*portCard{}
	for _, at := range order {
		if c := byAddress[at]; len(c.ports) > 1 {
			kind := fmt.Sprintf("%d %s", len(c.ports), portKind(c.ports[0]))
			kinds[kind] = append(kinds[kind], c)
		}
	}
	return kinds
}

// compareCards judges the ports of cards of one kind that are not up: most cards
// have so many up.
func compareCards(r *portsRun, cards []*portCard, fates map[*Port]fate) {
	most, how := 0, map[int]int{}
	upAt := map[string]int{}
	for _, c := range cards {
		how[c.up]++
		for _, p := range c.ports {
			if checks.PortActive(p.IBPort) {
				upAt[onCard(p)]++
			}
		}
	}
	for n, times := range how {
		if times > how[most] || times == how[most] && n > most {
			most = n
		}
	}
	sure := how[most]*2 > len(cards)
	for _, c := range cards {
		if most == 0 && !anyUp(r) { // nothing on the node is: all of it is a fault
			continue
		}
		usual := func(p *Port) bool { return upAt[onCard(p)]*2 > len(cards)-1 } // of one that is down
		known := false                                                          // that a port is down which is up on most other cards
		for _, p := range c.ports {
			known = known || !checks.PortActive(p.IBPort) && usual(p)
		}
		for _, p := range c.ports {
			switch {
			case checks.PortActive(p.IBPort):
			case c.up >= most, known && !usual(p):
				fates[p] = fate{severity: checks.OK}
			default:
				is := fate{checks.Fail, fmt.Sprintf("%d of the card's ports are up, of most such cards %d", c.up, most)}
				if !sure {
					is = fate{checks.Warn, fmt.Sprintf("%d of the card's ports are up, of another such card %d", c.up, most)}
				}
				fates[p] = is
			}
		}
	}
}

// anyUp says whether any port that is judged is up.
func anyUp(r *portsRun) bool {
	for _, p := range r.ports {
		if checks.PortActive(p.IBPort) {
			return true
		}
	}
	return false
}
