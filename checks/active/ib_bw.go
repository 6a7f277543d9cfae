package active

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibBW measures the write bandwidth of RDMA ports with perftest's ib_write_bw, server and client
// on this node. It tests the active ports that carry jobs' traffic, or each DEVICE given by -d.
// It fails if a port is slower than GBPS, in Gb/s. Without GBPS it uses the floor of the platform
// for the same run, and warns below 85 % of the rate of the port and its PCIe link. A port fails
// that is far from its peers, or that transfers nothing while others do. A run of ib_write_bw
// that ends with an error is repeated alone before its port fails.
//
// Each port writes to itself, for -D SECONDS (4), in messages of -s SIZE bytes (1M; 8M with
// --gdr): that tests its PCIe link in both directions and the adapter, but neither cable nor
// switch. --pairs writes between two near ports of one subnet, one way and then the other; the
// subnet is known from their IP addresses, or from their GIDs and subnet manager. A port without
// a partner writes to itself.
//
// With --gdr it uses memory of the nearest GPU of each port. It needs an ib_write_bw built with CUDA
// (Debian's is not: -p PROGRAM names another). The memory is shared by dma-buf if neither
// nvidia_peermem nor nv_peer_mem is loaded. -b writes both ways at once. Ports run at the same
// time unless they share a card, or, with host memory, a root port; --serial runs them one after
// another. -t SECONDS (60) is the time limit of all.
//
// AzureHPC's names: check_ib_bw_gdr uses GPU memory and 8 MiB, all ports at once (AzureHPC's own
// check of this name never fails); check_ib_bw_loop_gdr is its older name; check_ib_bw_non_gdr uses
// host memory and 1 MiB, one port after another. A machine name after the rate, and the repeats
// after that, are ignored.
//
//	gpu* || check_ib_bw_gdr 380
//	hb* || check_ib_bw --serial 390
type ibBW struct {
	active

	Rate     float64       `opt:"w" arg:"1" toml:"rate" in:"0.5:3200 min"` // least rate of each port, Gb/s; 0: the platform's
	Surplus  []string      `arg:"*"`                                       // size of a message; AzureHPC's machine name and repeats are ignored
	Size     checks.Size   `opt:"s" toml:"size"`                           // size of a message, bytes; 0: 8 MiB with --gdr, else 1 MiB
	Devices  []string      `opt:"d" toml:"devices"`                        // ports to test; none: those that carry jobs' traffic
	GDR      bool          `long:"gdr" toml:"gdr"`                         // use GPU memory
	Pairs    bool          `long:"pairs" toml:"pairs"`                     // write between two ports
	Both     bool          `opt:"b" toml:"bidirectional"`                  // write both ways at once
	Serial   bool          `long:"serial" toml:"serial"`                   // one port after another
	Duration time.Duration `opt:"D" toml:"duration"`                       // duration of each run, at least 1 s
	Time     time.Duration `opt:"t" toml:"time"`                           // time limit of all runs
	Program  string        `opt:"p" toml:"program"`                        // name or path of ib_write_bw

	name  string
	start time.Duration // see bwStart; 0: measured defaults
}

func init() {
	for _, alias := range []struct {
		name        string
		lane        checks.Lane // the CUDA worker can query NVML for idle GPUs
		gdr, serial bool
		usage       string
	}{
		{"check_ib_bw", checks.CUDA, false, false, "[--gdr] "}, {"check_ib_write_bw", checks.CUDA, false, false, "[--gdr] "},
		{"check_ib_bw_gdr", checks.CUDA, true, false, ""}, {"check_ib_write_bw_gdr", checks.CUDA, true, false, ""},
		{"check_ib_bw_loop_gdr", checks.CUDA, true, false, ""},
		{"check_ib_bw_non_gdr", checks.Local, false, true, ""}, {"check_ib_write_bw_non_gdr", checks.Local, false, true, ""},
	} {
		checks.Register(checks.Info{
			Name:    alias.name,
			Usage:   "[--pairs] " + alias.usage + "[-b] [--serial] [-d DEVICE]... [-D SECONDS] [-t SECONDS] [-p PROGRAM] [--max-age AGE] [-w GBPS] [-s SIZE] [GBPS [SIZE]]",
			Summary: "RDMA ports write as fast as they should",
			Lane:    alias.lane,
			Active:  true,
			New: func() checks.Check {
				return &ibBW{GDR: alias.gdr, Serial: alias.serial, Duration: 4 * time.Second, Time: time.Minute, Program: "ib_write_bw", name: alias.name}
			},
			Do: ibBWDo,
		})
	}
}

func ibBWDo() map[string]string {
	return activeDo("ib.bw", "See the port's PCIe link (check_ib_pcie: width, speed and MaxReadReq), its errors (check_ib_errors), the CPU clocks, IOMMU and ACS; with GPUs check_hw_topology.", map[string]string{
		"ib.inactive":    fabric.InactiveDo,
		"ib.bw.down":     "Nothing here: check_ib_ports reports the fault of a port that is not active.",
		"ib.bw.program":  "Install perftest (apt-get install perftest, dnf install perftest), or name another ib_write_bw with -p. If it prints an error, repeat it by hand: ib_write_bw --help.",
		"ib.bw.cuda":     "Build perftest with CUDA (./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h) and name it with -p, or use check_ib_bw_non_gdr. The packages of distributions are built without CUDA.",
		"ib.bw.kind":     "Nothing to repair: this adapter has no transport of ib_write_bw. Its vendor has other tests.",
		"ib.bw.gid":      "The port has no address for RoCE v2: see check_ib_gid.",
		"ib.bw.gpu":      "Nothing, if a process uses the nearest GPU of the port, MIG splits it, a virtual machine has it, or its compute mode is exclusive on purpose (default: nvidia-smi -i INDEX -c 0); otherwise see nvidia-smi.",
		"ib.bw.failed":   "Repeat it by hand: ib_write_bw -d DEVICE in one terminal, ib_write_bw -d DEVICE 127.0.0.1 in another; see dmesg for the adapter, check_ib_errors, check_gpu_driver -m 'nvidia_peermem|dma-buf', and ulimit -l.",
		"ib.bw.repeated": "Nothing, if it is rare: the port works. If the same port reports it repeatedly, run ib_write_bw by hand (see ib.bw.failed), and see check_ib_errors and the load of the node.",
		"ib.bw.way":      "No port of this kind has a rate: the addresses of the network are a more likely cause than the ports. RoCE: an interface in a VRF (ip vrf show) reaches itself only with a recent kernel, and --pairs needs all rails in one network (ip route get ADDRESS from ADDRESS): remove --pairs, or the line. InfiniBand: see sminfo and check_ib_gid. If the line names only one port, add another.",
		"ib.bw.alone":    "Nothing, if the rails are separate networks. Otherwise see the addresses and routes of their interfaces (ip route show dev INTERFACE), and the subnet's prefix and manager (check_ib_gid, sminfo).",
		"ib.bw.rate":     "Ports of this kind reach nine tenths of their rate. If this is the best that the node can do, set the number on the line. Otherwise see check_ib_pcie and check_ib_ports.",
		"ib.bw.untested": "Give the line more time (-t), or each port less (-D).",
	})
}

func (c *ibBW) Bound() time.Duration { return c.Time }

// size returns the size of a message, bytes.
func (c *ibBW) size() int64 {
	switch {
	case c.Size > 0:
		return int64(c.Size)
	case c.GDR:
		return 8 << 20
	}
	return 1 << 20
}

// algorithm returns the name of a kind of run in floors.
func (c *ibBW) algorithm(pair bool) string {
	word := "host"
	if c.GDR {
		word = "gdr"
	}
	if pair {
		word += " pair"
	}
	if c.Both {
		word += " bidirectional"
	}
	return word
}

func (c *ibBW) Validate() error {
	switch {
	case c.Duration < time.Second || c.Duration > time.Hour:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Duration.String(), Want: "-D of 1 s to 1 h"}
	case c.Size < 0 || c.Size == 1 || c.Size > 1<<30:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Size.String(), Want: "a size of 2 bytes to 1 GiB"}
	case strings.HasPrefix(c.Program, "-") || c.Program == "":
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Program, Want: "a program"}
	}
	return validateTime(c.Time)
}

// Bind also accepts the machine name and the repeats that AzureHPC's older files have after the
// rate.
func (c *ibBW) Bind(args []string) error {
	if err := checks.BindTags(c, args); err != nil {
		return err
	}
	if len(c.Surplus) == 0 || startsWithLetter(c.Surplus[0]) {
		return c.Validate()
	}
	if err := checks.SetField(reflect.ValueOf(&c.Size).Elem(), c.Surplus[0]); err != nil {
		return err
	}
	if c.Surplus = slices.Delete(c.Surplus, 0, 1); len(c.Surplus) == 0 {
		c.Surplus = nil
	} else if !startsWithLetter(c.Surplus[0]) {
		return &checks.UsageError{Kind: checks.Surplus, Word: c.Surplus[0], Want: "at most 2"}
	}
	return c.Validate()
}

func startsWithLetter(word string) bool {
	return word == "" || 'a' <= word[0]|0x20 && word[0]|0x20 <= 'z'
}

func (c *ibBW) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	f, findings := fabric.Ask(env, c.name)
	if f == nil {
		return findings
	}
	ports, findings := f.Judged(c.Devices, "")
	up, findings := fabric.AskUp(f, ports, len(c.Devices) > 0, findings)
	if len(up) == 0 {
		return findings
	}
	begin := c.begin
	if c.GDR {
		begin = c.beginGPUs
	}
	r, refused := begin(ctx, env, activeTest{Check: c.name, Code: "ib.bw", Bound: c.Bound(), Of: c})
	if r == nil {
		return append(findings, refused...)
	}
	r.findings = append(r.findings, findings...)
	b := &bwRun{activeRun: r, c: c, worked: map[bwWay]bool{}}
	for _, p := range ports {
		if !slices.Contains(up, p) {
			b.report(p.Subject(), checks.Finding{Code: "ib.bw.down", Severity: checks.Skip, Got: p.State}, "not measured: see check_ib_ports for a port that is not %s", checks.IBActive)
		}
	}
	if b.askProgram() {
		b.plan(up)
		b.run()
	}
	return r.done()
}

// bwRun is one run of the check.
type bwRun struct {
	*activeRun

	c      *ibBW
	help   string // output of its --help
	tests  []bwTest
	ports  []*fabric.Port          // measured ports
	reach  map[*fabric.Port]string // subnet of a port; "": unknown
	faults []bwFault
	worked map[bwWay]bool
}

// askProgram reads the options that the program supports.
func (b *bwRun) askProgram() bool {
	b.at("run %s --help", b.c.Program)
	help, err := rdma.PerftestHelp(b.ctx, b.env.Host, b.c.Program)
	b.help = help
	switch {
	case err != nil:
		b.failures = true
		b.report(checks.Device{}, checks.Finding{Code: "ib.bw.program", Severity: checks.Unknown, Want: "perftest", Got: err.Error()}, "cannot run %s", b.c.Program)
		return false
	case b.c.GDR && !strings.Contains(help, "--use_cuda"):
		b.reportNoCUDA()
		return false
	}
	return true
}

func (b *bwRun) reportNoCUDA() {
	b.failures = true
	b.report(checks.Device{}, checks.Finding{Code: "ib.bw.cuda", Severity: checks.Unknown, Want: "a build with CUDA"}, "%s cannot use GPU memory", b.c.Program)
}

// run runs all tests, round by round.
func (b *bwRun) run() {
	defer b.reportFaults()
	for b.ctx.Err() == nil {
		if len(b.tests) == 0 {
			if b.tests = b.takeRepeats(); len(b.tests) == 0 {
				return
			}
		}
		round, rest := b.nextRound()
		if !b.timeFor(round) {
			b.reportUntested()
			return
		}
		b.tests = rest
		var tests []rdma.Perftest
		var names []string
		for _, t := range round {
			tests = append(tests, t.test)
			names = append(names, t.from.Name())
		}
		b.at("%s: %s", b.c.Program, strings.Join(names, " "))
		results := rdma.Perftests(b.ctx, b.env.Host, tests)
		if b.ctx.Err() != nil {
			return // the frame reports the stop
		}
		b.judgeRound(round, results)
	}
}

// timeFor reports whether the time suffices for a round; a test that hangs takes its whole limit.
func (b *bwRun) timeFor(round []bwTest) bool {
	need := b.c.Duration
	if len(round) > 0 && round[0].first != nil && round[0].first.Kind == rdma.PerftestHung {
		need = round[0].test.Timeout
	}
	end, ok := b.ctx.Deadline()
	return !ok || time.Until(end) >= need+time.Second
}

// reportUntested reports the tests that had no time to run. A test that hung has used its time; any
// other error is final only after a second run.
func (b *bwRun) reportUntested() {
	for _, t := range b.tests {
		if t.first != nil {
			together := 0
			if t.first.Kind == rdma.PerftestHung {
				together = 1
			}
			b.faults = append(b.faults, bwFault{t, t.first, together})
			continue
		}
		b.failures = true
		b.report(t.from.Subject(), checks.Finding{Code: "ib.bw.untested", Severity: checks.Unknown, Want: fmt.Sprintf("-t above %s", b.c.Time)}, "not measured: time limit reached")
	}
}
