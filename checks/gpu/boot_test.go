package gpu

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// booting sets the time since the boot.
func booting(s checktest.Scenario, seconds int) checktest.Scenario {
	s.Files = maps.Clone(s.Files)
	s.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", seconds)
	return s
}

// startingGPUs returns the text about eight GPUs that start, with more findings after theirs.
func startingGPUs(text string, more ...string) string {
	n := checktest.H100s()
	var list []string
	for i := range 3 {
		list = append(list, checks.GPUDevice(&n.GPUs[i]).String()+": "+text)
	}
	return strings.Join(append(list, fmt.Sprintf("%d more", 5+len(more))), "; ")
}

// The prolog of a job waits for the fabric and the links, and refuses the job if they are not ready in
// time; a health check and an epilog do not wait.
func TestGPUsBeforeAJob(t *testing.T) {
	t.Parallel()
	joining, down := allGPUs(inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricInProgress })), allGPUs(lowered(everyLink...))
	for name, c := range map[string]struct {
		check  checks.Check
		change func(*nvml.Snapshot)
		job    *checks.Job
		uptime int
		ready  int // the looks after which all is ready; 0: never
		want   checks.Severity
		waits  bool
	}{
		"fabric, prolog":                      {&gpuFabric{}, joining, &checks.Job{}, 60, 0, checks.Fail, true},
		"fabric, prolog a day after the boot": {&gpuFabric{}, joining, &checks.Job{}, 86400, 0, checks.Fail, true},
		"fabric that becomes ready":           {&gpuFabric{}, joining, &checks.Job{}, 86400, 3, checks.OK, true},
		"fabric, epilog":                      {&gpuFabric{}, joining, &checks.Job{Ended: true}, 60, 0, checks.Skip, false},
		"fabric, health check":                {&gpuFabric{}, joining, nil, 86400, 0, checks.Warn, false},
		"IMEX, prolog":                        {&gpuFabric{IMEX: "yes"}, nil, &checks.Job{}, 60, 0, checks.Fail, true},
		"IMEX, prolog a day after the boot":   {&gpuFabric{IMEX: "yes"}, nil, &checks.Job{}, 86400, 0, checks.Fail, false},
		"no IMEX wanted, prolog":              {&gpuFabric{}, nil, &checks.Job{}, 60, 0, checks.OK, false},
		"links, prolog":                       {&gpuNVLink{Links: 18}, down, &checks.Job{}, 60, 0, checks.Fail, true},
		"links, prolog a day after the boot":  {&gpuNVLink{Links: 18}, down, &checks.Job{}, 86400, 0, checks.Fail, false},
		"links that become ready":             {&gpuNVLink{Links: 18}, down, &checks.Job{}, 60, 3, checks.OK, true},
		"links, epilog":                       {&gpuNVLink{Links: 18}, down, &checks.Job{Ended: true}, 60, 0, checks.Skip, false},
		"one link that trains, prolog":        {&gpuNVLink{}, checktest.Gpu3(lowered(7)), &checks.Job{}, 60, 3, checks.OK, true},
		"as many links as wanted, prolog":     {&gpuNVLink{Links: 12}, allGPUs(lowered(12, 13, 14, 15, 16, 17)), &checks.Job{}, 60, 0, checks.OK, false},
		"NVLinks switched off, prolog":        {&gpuNVLink{}, allGPUs(func(g *nvml.GPU) { g.NVLinks, g.NVLink = nvml.Reading[[]bool]{}, nvml.NVLink{} }), &checks.Job{}, 60, 0, checks.Skip, false},
		"no links by design":                  {&gpuNVLink{}, down, &checks.Job{}, 60, 0, checks.OK, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := booting(running(checktest.OnGPUs(name, nil, c.change)), c.uptime)
			env := &checks.Env{Host: probe.NewHost(probetest.Tree(t, s.Files)), Job: c.job}
			if name != "no links by design" {
				p := hgxLinks()
				p.NVSwitchGPUs = 8
				env.Platform = func(string, string, int) *checks.Platform { return p }
			}
			nvml.Set(env.Host, s.NVML, nil)
			looks := 0
			env.Doing = func(what string) {
				if strings.HasPrefix(what, "wait for ") {
					if looks++; looks == c.ready {
						copy(s.NVML.GPUs, checktest.H100s().GPUs)
					}
				}
			}
			if link, ok := c.check.(*gpuNVLink); ok {
				link.name = gpuNVLinkName
			}
			left := 2 * bootPause
			if c.ready > 0 {
				left = time.Minute
			}
			findings := c.check.Run(checks.WithDeadline(t.Context(), time.Now().Add(left)), env)
			if got := checks.Worst(findings); got != c.want {
				t.Errorf("%v: %v, want %v", findings, got, c.want)
			}
			if looks > 0 && !c.waits || looks == 0 && c.waits {
				t.Errorf("%d looks", looks)
			}
		})
	}
}
