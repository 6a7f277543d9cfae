package fabric

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// Adapters, modules and addresses that are missing in the first five minutes after a boot are
// skipped, but not before a job, and not later.
func TestStartingFabric(t *testing.T) {
	t.Parallel()
	kinds := fakesys.Kinds()
	const adapters, driver, addresses = "booting, adapters are not ready", "booting, no driver yet", "booting, roce without addresses"
	for _, c := range []struct {
		kind  string
		check checks.Check
		want  string // the code after the boot
	}{
		{adapters, &ibPorts{}, "ib.lacking"},
		{adapters, &ibPorts{Count: 8}, "ib.ports.count"},
		{adapters, &ibPorts{Devices: []string{"mlx5_1", "mlx5_6"}}, "ib.unnamed"},
		{adapters, &ibCount{}, "ib.lacking"},
		{adapters, &ibCount{Count: 8}, "ib.count"},
		{driver, &ibPorts{}, "ib.lacking"},
		{driver, &ibModules{}, "ib.modules"},
		{driver, &ibModules{Modules: []string{"mlx5_ib"}}, "ib.modules"},
		{addresses, &ibGID{Index: -1}, "ib.gid.none"},
		{addresses, &ibGID{Index: 3}, "ib.gid.none"},
		{addresses, &ibGID{Index: -1, MTU: 4200}, "ib.gid.mtu"},
	} {
		for _, at := range []struct {
			up   int
			job  *checks.Job
			want checks.Severity
		}{{60, nil, checks.Skip}, {60, &checks.Job{Ended: true}, checks.Skip}, {60, &checks.Job{}, checks.Fail}, {300, nil, checks.Fail}} {
			t.Run(fmt.Sprintf("%s/%T/%s/%d/job %v", c.kind, c.check, c.want, at.up, at.job != nil), func(t *testing.T) {
				t.Parallel()
				sys := kinds[c.kind].Clone()
				sys.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", at.up)
				root := t.TempDir()
				if err := sys.Write(root); err != nil {
					t.Fatal(err)
				}
				got := c.check.Run(t.Context(), &checks.Env{Host: probe.NewHost(root), Job: at.job})
				found := slices.ContainsFunc(got, func(f checks.Finding) bool { return f.Code == c.want && f.Severity == checks.Fail })
				if checks.Worst(got) != at.want || found != (at.want == checks.Fail) {
					t.Errorf("%v: %v, want %v", checks.Worst(got), got, at.want)
				}
			})
		}
	}
}

// An adapter that was present earlier in this boot is not part of the start; one that was present
// before the boot can be.
func TestStartingPast(t *testing.T) {
	t.Parallel()
	for boot, want := range map[string]checks.Severity{"": checks.Fail, "another": checks.Skip} {
		sys := fakesys.DGXH100().Remove(fakesys.HCAAddress(3))
		sys.Files["proc/uptime"] = "60.00 1.00\n"
		sys.Files["proc/stat"] = "cpu  0 0 0 0\nbtime 1767322690\n" // the past is 55 s after the boot
		sys.Files[ibPastFile] = ibPast(3, "InfiniBand", boot, `,"series":{"1":[[1767322745,400]]}`)
		root := t.TempDir()
		if err := sys.Write(root); err != nil {
			t.Fatal(err)
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&ibPorts{}).Run(t.Context(), env); checks.Worst(got) != want {
			t.Errorf("boot %q: %v, want %v", boot, got, want)
		}
	}
}
