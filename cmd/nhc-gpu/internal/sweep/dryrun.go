package sweep

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
)

// printPlan prints what a sweep would do.
func (f *flags) printPlan(ctx context.Context, o launch.Options) error {
	nodes, away, err := launch.Look(ctx, o)
	if err != nil {
		return err
	}
	planes, rails := f.assume(nodes)
	var plans []sweep.Forecast
	total := time.Duration(0)
	for _, stage := range o.Stages {
		p := sweep.Forecast{Stage: stage, Skipped: sweep.Unfit(stage, len(nodes))}
		if p.Skipped == "" {
			plan, err := o.Plan(stage, nodes, o.Seed, 1)
			if err != nil {
				return err
			}
			p = sweep.Foresee(stage, plan, o.Ramp)
		}
		total += p.About
		plans = append(plans, p)
	}
	if f.json {
		return printJSON(map[string]any{"nodes": nodes, "not_tested": away, "stages": plans, "about": total, "seed": o.Seed, "command": o.Command})
	}
	var b strings.Builder
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	fmt.Fprintf(&b, "%s: %s\n", console.Counted(len(nodes), "node"), sweeppage.Hostlist(names))
	for _, n := range away {
		fmt.Fprintf(&b, "  not %s: %s\n", n.Name, n.Why)
	}
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tROUNDS\tTESTS AT ONCE\tABOUT")
	for _, p := range plans {
		if p.Skipped != "" {
			fmt.Fprintf(w, "%s\t-\t-\t%s\n", p.Stage, p.Skipped)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", p.Stage, p.Rounds, p.Tests, p.About.Round(time.Second))
	}
	_ = w.Flush()
	fmt.Fprintf(&b, "assumed until the nodes describe themselves: the planes %s and the rails %s, 8 GPUs\n", strings.Join(planes, ","), strings.Join(rails, ","))
	fmt.Fprintf(&b, "about %s in all, without the confirmation of suspects; the job may take %s\nnothing was tested; seed %d\n", total.Round(time.Second), o.Time, o.Seed)
	_, err = fmt.Fprint(console.Screen, b.String())
	return err
}

// assume gives nodes that are only known by name what most nodes have, so that rounds can be counted.
func (f *flags) assume(nodes []sweep.Node) (planes, rails []string) {
	planes, rails = f.planes, f.rails
	if len(planes) == 0 {
		planes = []string{"eth0"}
	}
	if len(rails) == 0 {
		rails = []string{"mlx5_0:1"}
	}
	for i := range nodes {
		nodes[i].GPUs = 8
		for j, name := range planes {
			address := netip.AddrFrom4([4]byte{10, byte(j), byte((i + 1) >> 8), byte(i + 1)})
			nodes[i].Planes = append(nodes[i].Planes, sweep.Plane{Name: name, Address: netip.PrefixFrom(address, 16), MTU: 1500})
		}
		for _, name := range rails {
			nodes[i].Rails = append(nodes[i].Rails, sweep.Rail{Name: name, Layer: "InfiniBand"})
		}
	}
	return planes, rails
}
