package conf

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Platform is a type of node, identified by its GPUs on the PCI bus, with the reference figures of a
// healthy one.
type Platform struct {
	Pos        Pos
	Name       string
	Devices    []string          // PCI device IDs of its GPUs: "2330"
	Subsystems []string          // PCI subsystem IDs, "10de:16c1"; empty means any
	Figures    map[string]Figure // by key, see the Figure constants
	Floors     []Floor           // minimum results of tests
}

//go:embed profiles
var profiles embed.FS

// Platforms holds the built-in platforms and those of a site.
type Platforms struct {
	site []Platform // the site's platforms, which take precedence
}

// ShippedPlatforms returns the built-in platforms, by file.
func ShippedPlatforms() ([]Platform, error) { return shippedPlatforms("") }

// shippedPlatforms returns the built-in platforms from files that contain the text: parsing all
// files takes too long for a check.
func shippedPlatforms(having string) (list []Platform, err error) {
	entries, err := profiles.ReadDir("profiles")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := profiles.ReadFile("profiles/" + e.Name())
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(data, []byte(having)) {
			continue
		}
		of, err := parsePlatforms("conf/profiles/"+e.Name(), string(data), having)
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

// ParsePlatforms parses the platforms of a site, which take precedence over the built-in ones; data
// can be empty. A platform with the name of a built-in one replaces the given keys and inherits the
// others; any other platform needs devices.
func ParsePlatforms(file string, data []byte) (*Platforms, error) {
	if len(data) == 0 {
		return &Platforms{}, nil
	}
	if err := usable(file, data, "TOML"); err != nil {
		return nil, err
	}
	var whole map[string]any
	if _, err := toml.Decode(string(data), &whole); err != nil {
		return nil, tomltext.Place(file, err)
	}
	site, err := parsePlatforms(file, string(data), "")
	if err == nil {
		err = distinct(site)
	}
	if err != nil {
		return nil, err
	}
	for i := range site {
		p := &site[i]
		shipped, err := shippedPlatforms("name = " + strconv.Quote(p.Name) + "\n")
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(shipped, func(s Platform) bool { return s.Name == p.Name })
		switch {
		case at >= 0:
			p.inherit(&shipped[at])
		case len(p.Devices) == 0:
			return nil, fmt.Errorf("%s: platform %q has no devices, and no platform of that name is known%s", p.Pos, p.Name, nearPlatform(p.Name))
		}
	}
	return &Platforms{site}, distinct(site)
}

// nearPlatform returns a question with the built-in platform that a name nearly has, "" for none.
func nearPlatform(name string) string {
	shipped, _ := ShippedPlatforms() // every test reads them
	var names []string
	for i := range shipped {
		names = append(names, shipped[i].Name)
	}
	return spell.DidYouMean(name, names)
}

// inherit copies the values that p does not set.
func (p *Platform) inherit(from *Platform) {
	if len(p.Devices) == 0 {
		p.Devices = from.Devices
		if len(p.Subsystems) == 0 {
			p.Subsystems = from.Subsystems
		}
	}
	for key, f := range from.Figures {
		if _, own := p.Figures[key]; !own {
			p.Figures[key] = f
		}
	}
	p.inheritFloors(from)
}

// Find returns the platform of a node with this number of GPUs of a device on its PCI bus. For a
// number that the platform does not have, the next larger one counts: a GPU is missing. A number
// greater than all matches no platform.
func (l *Platforms) Find(device, subsystem string, gpus int) (*Platform, error) {
	if p := best(l.site, device, subsystem, gpus); p != nil {
		return p, nil
	}
	shipped, err := shippedPlatforms(strconv.Quote(strings.ToLower(device)))
	if err != nil {
		return nil, err
	}
	return best(shipped, device, subsystem, gpus), nil
}

// best prefers an exact number of GPUs, then a listed subsystem.
func best(list []Platform, device, subsystem string, gpus int) (found *Platform) {
	most := 0
	for i := range list {
		p := &list[i]
		sizes := p.GPUs()
		points := 1
		switch {
		case !slices.Contains(p.Devices, device), len(p.Subsystems) > 0 && !slices.Contains(p.Subsystems, subsystem):
			continue
		case len(sizes) == 0 || slices.Contains(sizes, gpus):
			points += 2
		case sizes[len(sizes)-1] < gpus:
			continue
		}
		if len(p.Subsystems) > 0 {
			points++
		}
		if points > most {
			found, most = p, points
		}
	}
	return found
}

// distinct rejects platforms that match the same nodes.
func distinct(list []Platform) error {
	for i := range list {
		for j := range list[:i] {
			p, q := &list[i], &list[j]
			if p.Name == q.Name {
				return fmt.Errorf("%s: platform %q is there already, at line %d", p.Pos, p.Name, q.Pos.Line)
			}
			if common(p.Devices, q.Devices) && either(p.Subsystems, q.Subsystems) && either(p.GPUs(), q.GPUs()) {
				return fmt.Errorf("%s: platforms %q and %q fit the same GPUs", p.Pos, q.Name, p.Name)
			}
		}
	}
	return nil
}

func common[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(v T) bool { return slices.Contains(b, v) })
}

// either reports whether two lists overlap; an empty list means any.
func either[T comparable](a, b []T) bool {
	return len(a) == 0 && len(b) == 0 || common(a, b)
}
