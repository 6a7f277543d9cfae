package pcie

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Past has the best figures that the links of a node have had, by address. A link that is slow since
// the first run is probably built so; one that has become slower is faulty.
type Past struct {
	links    map[string]pastLink
	changed  bool
	findings []checks.Finding
}

// pastLink is what a link has had.
type pastLink struct {
	Is    string  `json:"is"` // the model and the place: the past of another device does not count
	Width int     `json:"width"`
	Speed float64 `json:"speed"` // GT/s
}

// pastName is the name of the file. All checks of links share it.
const pastName = "pcie-link"

// RecallPast reads what earlier runs stored.
func RecallPast(env *checks.Env, check string) *Past {
	p := &Past{}
	err := env.Recall(pastName, &p.links)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, probe.ErrNoMemory) {
		p.links, p.changed = nil, true
		p.fail(check, "%v; a new history begins", err)
	}
	if p.links == nil {
		p.links = map[string]pastLink{}
	}
	return p
}

func (p *Past) fail(check, format string, args ...any) {
	p.findings = append(p.findings, checks.Finding{Code: "fabric.past", Severity: checks.Warn}.Describe(check, format, args...))
}

// is describes a device and its place. The numbers of buses can change at a boot: in the same place it
// is below the same bridges.
func (l *Link) is() string {
	return strings.Join(append([]string{l.Vendor + ":" + l.Device}, l.Path...), " ")
}

func (p *Past) of(l *Link) pastLink {
	if then := p.links[l.Address]; then.Is == l.is() {
		return then
	}
	return pastLink{}
}

// note records a link, unless a value of it could not be read.
func (p *Past) note(l *Link, now pastLink) {
	if now.Is = l.is(); l.Err == nil && p.links[l.Address] != now {
		p.links[l.Address], p.changed = now, true
	}
}

// Store stores the past for later runs, if it has changed.
func (p *Past) Store(env *checks.Env, check string) []checks.Finding {
	if p.changed {
		if err := env.Remember(pastName, p.links); err != nil && !errors.Is(err, probe.ErrNoMemory) {
			p.fail(check, "%v", err)
		}
	}
	return p.findings
}
