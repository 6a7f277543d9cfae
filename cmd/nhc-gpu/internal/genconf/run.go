package genconf

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Run makes the run of nhc-genconf and returns its exit status.
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
	r.Set.Hold, r.Set.Past, r.Set.Spare = true, "", "" // a trial of a line changes nothing, and keeps nothing
	defer r.Close()
	exit := 0
	if err = settleFor(r, a); err == nil {
		r.Pool.SetVars(r.Set.WorkerVars())
		exit, err = Generate(a, Node{
			Pool: r.Pool, Signals: r.Sig, Budget: r.Budget, Version: version, Timeout: r.Set.Timeout(), Get: r.Set.Get, Try: func(lines []conf.Line) map[int]Trial { return try(r, lines) },
		})
	}
	if err != nil {
		fmt.Fprintf(console.Stderr, "%s: %v\n", a.Program, err)
		return options.ExitUsage
	}
	return exit
}

// settleFor takes over the settings of the command line, and gives what is still unset its
// default.
func settleFor(r *health.Run, a *Arguments) error {
	r.Set.Assign(a.Set)
	for _, w := range a.Words {
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
