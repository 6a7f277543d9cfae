package ask

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// openSite opens the configuration of the node with settings of a person, and plans it as each program
// of Slurm runs it. It runs no check and no script of the site.
func openSite(words []string) (*health.Run, []session.Planned, error) {
	r, err := report.Start(&options.Options{Words: words})
	if err != nil {
		return nil, nil, err
	}
	plans, err := planSite(r)
	if err != nil {
		r.Close()
		return nil, nil, report.Unusable{Err: err}
	}
	return r, plans, nil
}

func planSite(r *health.Run) (plans []session.Planned, err error) {
	if err := r.Sysconfig(); err != nil {
		return nil, err
	}
	marks := strings.TrimSpace(r.Set.Get("MARK_OFFLINE"))
	report.Quiet(r)
	if errs := r.Open(nil, nil); len(errs) > 0 {
		return nil, errs[0]
	}
	r.SkipScripts()
	main, err := r.MainFile()
	switch {
	case err != nil:
		return nil, err
	case main.Missing && len(r.Tables) == 0:
		return nil, fmt.Errorf("there is no %s: under Slurm nothing is checked; nhc-gpu genconf writes one", r.Path)
	}
	r.PresetHardware(main.Data)
	defer func() { r.Role, r.Whole, r.Own = slurm.Manual, true, false }()
	for _, role := range []slurm.Role{slurm.HealthCheck, slurm.Prolog, slurm.Epilog} {
		r.Role, r.Whole, r.Own, r.Bash.Vetted = role, false, false, nil
		if err := readLines(r); err != nil {
			return nil, err
		}
		p := session.Planned{Context: role.String(), Plan: r.Build()}
		switch {
		case r.Set.Observes():
			p.Off = "MODE=" + conf.Observe
		case role == slurm.HealthCheck && marks != "" && marks != strconv.Itoa(1): // around a job the exit status acts
			p.Off = "MARK_OFFLINE=" + marks
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// readLines reads the lines of a run in its role: those of its own file, if there is one.
func readLines(r *health.Run) error {
	if q := r.OwnRequest(); q != nil {
		data, there, err := r.ContentOf(q.Path, r.Pool.Call(r.Ctx, checks.Local, q, session.Reading), false)
		if err != nil {
			return err
		}
		if there {
			r.Own = true
			return first(r.UseLines(q.Path, data))
		}
	}
	return first(r.ReadLines())
}

func first(errs []error) error {
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}
