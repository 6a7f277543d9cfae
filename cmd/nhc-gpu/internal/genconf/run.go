package genconf

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Run runs nhc-genconf and returns the exit status.
func Run(words []string, version string) int {
	a, err := Parse(words)
	switch {
	case err != nil:
		return options.ExitUsage
	case a == nil: // the help
		return 0
	}
	r := health.New([]string{options.OwnName}, new(options.Options))
	_ = r.OpenState("")
	r.Set.DryRun, r.Set.Past, r.Set.Spare = true, "", "" // a trial carries out no action and saves nothing
	defer r.Close()
	exit := 0
	if err = settleFor(r, a); err == nil {
		exit, err = generate(r, a, version)
	}
	if err != nil {
		fmt.Fprintf(console.Stderr, "%s: %v\n", a.Program, err)
		return options.ExitUsage
	}
	return exit
}

// generate reads the site's platforms and writes the configuration.
func generate(r *health.Run, a *Arguments, version string) (exit int, err error) {
	path := r.Set.ProfilesFile()
	o := r.Pool.Call(r.Sig.Ctx, checks.Local, &wire.Request{Op: wire.OpRead, Path: path, Line: "read " + path}, session.Reading)
	data, there, err := r.ContentOf(path, o, r.Set.Get("PLATFORM_PROFILES") != "")
	if err != nil {
		return 0, err
	}
	if there {
		r.Set.Profiles, r.Set.ProfilesFrom = data, path
	}
	known, err := conf.ParsePlatforms(path, r.Set.Profiles)
	if err != nil {
		return 0, err
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	var platform *checks.Platform
	if a.Platform != "" {
		if platform, err = platformNamed(known, a.Platform); err != nil {
			return 0, err
		}
	}
	return Generate(a, Node{
		Pool: r.Pool, Signals: r.Sig, Budget: r.Budget, Version: version, Timeout: r.Set.Timeout(), Get: r.Set.Get,
		Try: func(lines []conf.Line) map[int]Trial { return try(r, lines) },
		Here: func() []checks.PlatformGroup {
			groups, _ := r.PlatformGroups() // scan reports errors of the PCI bus
			return groups
		},
	}, platform)
}

// platformNamed returns the figures of the platform with a name.
func platformNamed(known *conf.Platforms, name string) (*checks.Platform, error) {
	list, err := known.All()
	if err != nil {
		return nil, err
	}
	for i := range list {
		if strings.EqualFold(list[i].Name, name) {
			return node.PlatformFigures(&list[i]), nil
		}
	}
	var names, parts []string
	for i := range list {
		names = append(names, list[i].Name)
		if strings.Contains(strings.ToLower(list[i].Name), strings.ToLower(name)) {
			parts = append(parts, list[i].Name)
		}
	}
	if len(parts) > 1 {
		return nil, fmt.Errorf("there is no platform with the name %q; these names contain it: %s", name, strings.Join(parts, ", "))
	}
	return nil, fmt.Errorf("there is no platform with the name %q%s", name, cmp.Or(spell.DidYouMean(name, names), "; nhc-gpu platforms lists them"))
}

// settleFor applies the settings of the command line and the defaults.
func settleFor(r *health.Run, a *Arguments) error {
	r.Set.Assign(a.Set)
	for _, w := range a.Words {
		if !strings.Contains(w, "=") {
			return fmt.Errorf("argument %q: want NAME=value; a platform needs --platform '%s'", w, w)
		}
		if err := r.Set.Word(w); err != nil {
			return err
		}
	}
	r.Set.Preset(a.For)
	dir := cmp.Or(r.Set.Get("CONFDIR"), "/etc/nhc")
	r.Set.Put("CONFFILE", cmp.Or(r.Set.Get("CONFFILE"), filepath.Join(dir, r.Set.Get("NAME")+".conf.auto")), false)
	if m, ok := r.Set.Lookup("DMI_MATCH"); ok {
		a.DMI = m
	}
	r.Set.Finalize()
	r.Budget.Give(Limit)
	return nil
}
