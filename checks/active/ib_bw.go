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

// ibBW measures what RDMA ports write, by perftest's ib_write_bw, server and client on
// this node: those that carry jobs' traffic, or each DEVICE that -d names, that are up.
// GBPS is what each has to reach, in Gb/s; without it that is the floor of the platform
// for the same run, and it warns below 85 % of what the port and its PCIe link can do.
// A port fails that is far from its peers, or that carries nothing while others do. A run
// of ib_write_bw that ends with an error is repeated alone before its port fails.
//
// Each port writes to itself, for -D seconds, in messages of -s bytes: that shows its
// PCIe link in both directions and its own work, but neither cable nor switch. --pairs
// writes between two ports that are near to each other and in one subnet, by their IP
// addresses or their GIDs and subnet manager, one way and then the other; a port without
// such another writes to itself.
//
// With --gdr it takes the memory of the GPU that is nearest to each port, for which
// ib_write_bw has to be built with CUDA (Debian's is not: -p names another), by dma-buf
// where neither nvidia_peermem nor nv_peer_mem is loaded. -b writes both ways at once. Ports work at
// the same time unless they share a card, or a root port while the memory is the host's;
// --serial takes one after the other. -t bounds all of it.
//
// check_ib_bw_gdr and check_ib_bw_non_gdr are AzureHPC's names, of which the first could
// not fail: GPU memory and 8 MiB, all at once; host memory and 1 MiB, one after the other.
// check_ib_bw_loop_gdr is an older name of the first. The name of a machine behind the
// rate, and the repeats behind that, are ignored.
//
//	gpu* || check_ib_bw_gdr 380
//	hb* || check_ib_bw --serial 390
type ibBW struct {
	active

	Rate     float64       `opt:"w" arg:"1" toml:"rate"`  // what each has to reach, Gb/s; 0: the platform's
	Surplus  []string      `arg:"*"`                      // the size of a message; AzureHPC's name of the machine and repeats are not used
	Size     checks.Size   `opt:"s" toml:"size"`          // of a message, bytes; 0: 8 MiB with --gdr, else 1 MiB
	Devices  []string      `opt:"d" toml:"devices"`       // ports; without: those that carry jobs' traffic
	GDR      bool          `long:"gdr" toml:"gdr"`        // memory of GPUs
	Pairs    bool          `long:"pairs" toml:"pairs"`    // between two ports, not to itself
	Both     bool          `opt:"b" toml:"bidirectional"` // both ways at once
	Serial   bool          `long:"serial" toml:"serial"`  // one after the other
	Duration time.Duration `opt:"D" toml:"duration"`      // of each, at least 1 s
	Time     time.Duration `opt:"t" toml:"time"`          // that all of it may take
	Program  string        `opt:"p" toml:"program"`       // ib_write_bw, or its path

	name  string
	start time.Duration // see bwStart; 0: as long as that takes
}

func init() {
	for _, alias := range []struct {
		name        string
		lane        checks.Lane // it may ask NVML which GPUs are free
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
	return activeDo("ib.bw", "See the port's PCIe link (check_ib_pcie: width and speed, MaxReadReq), its errors (check_ib_errors), the clocks of the CPUs, IOMMU and ACS; with GPUs check_hw_topology.", map[string]string{
		"ib.inactive":    fabric.InactiveDo,
		"ib.bw.down":     "Nothing here: check_ib_ports says what is wrong with a port that is not up.",
		"ib.bw.program":  "Install perftest (apt-get install perftest, dnf install perftest), or name another ib_write_bw with -p. With its message run it by hand: ib_write_bw --help.",
		"ib.bw.cuda":     "Build perftest with CUDA (./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h) and name it with -p, or use check_ib_bw_non_gdr. Distributions' packages have no CUDA.",
		"ib.bw.kind":     "Nothing: this adapter has another transport than ib_write_bw uses. Its vendor has tests of its own.",
		"ib.bw.gid":      "The port has no address that RoCE v2 could use: check_ib_gid says more.",
		"ib.bw.gpu":      "Nothing if somebody uses the GPU that is nearest to the port, or if its compute mode is meant to be exclusive (default: nvidia-smi -i INDEX -c 0); else see nvidia-smi.",
		"ib.bw.failed":   "Run the same by hand: ib_write_bw -d DEVICE on one terminal, ib_write_bw -d DEVICE 127.0.0.1 on another; see dmesg for the adapter, check_ib_errors, check_gpu_driver -m 'nvidia_peermem|dma-buf', and ulimit -l.",
		"ib.bw.repeated": "Nothing, if it is rare: the port works. If the same port reports it repeatedly, run ib_write_bw by hand (see ib.bw.failed), and see check_ib_errors and the load of the node.",
		"ib.bw.way":      "No such port has a rate: that is more likely the network's addresses than the ports. RoCE: an interface in a VRF (ip vrf show) reaches itself only with a new kernel, and with --pairs rails have to be one network (ip route get ADDRESS from ADDRESS): leave --pairs out, or the line. InfiniBand: sminfo, check_ib_gid. Of a port alone: name another beside it.",
		"ib.bw.alone":    "Nothing, if the rails are networks of their own. Else see the addresses and routes of their interfaces (ip route show dev INTERFACE), and the subnet's prefix and manager (check_ib_gid, sminfo).",
		"ib.bw.rate":     "Other such ports reach nine tenths of their rate. If this is the best that the node can do say so: give the line a number. Else see check_ib_pcie and check_ib_ports.",
		"ib.bw.untested": "Give the line more time (-t), or each port less (-D).",
	})
}

// Bound is the most that it takes.
func (c *ibBW) Bound() time.Duration { return c.Time }

// size is that of a message, bytes.
func (c *ibBW) size() int64 {
	switch {
	case c.Size > 0:
		return int64(c.Size)
	case c.GDR:
		return 8 << 20
	}
	return 1 << 20
}

// algorithm is the word by which floors tell runs apart.
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

// Validate refuses what perftest would.
func (c *ibBW) Validate() error {
	switch {
	case c.Duration < time.Second || c.Duration > time.Hour:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Duration.String(), Want: "-D of 1 s to 1 h"}
	case c.Size < 0 || c.Size == 1 || c.Size > 1<<30:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Size.String(), Want: "a size of 2 bytes to 1 GiB"}
	case strings.HasPrefix(c.Program, "-") || c.Program == "":
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Program, Want: "a program"}
	}
	return usableTime(c.Time)
}

// Bind is BindTags, what AzureHPC's older files have behind the rate (a name of the
// machine, and repeats), and what perftest would refuse.
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
	up, findings := fabric.AskUp(f, ports, findings)
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
	b := &bwRun{activeRun: r, c: c, fabric: f, worked: map[bwWay]bool{}}
	for _, p := range ports {
		if !slices.Contains(up, p) {
			b.report(p.Subject(), checks.Finding{Code: "ib.bw.down", Severity: checks.Skip, Got: p.State}, "not measured: check_ib_ports judges a port that is not %s", checks.IBActive)
		}
	}
	if b.program() {
		b.plan(up)
		b.run()
	}
	return r.done()
}

// bwRun is one run of the check.
type bwRun struct {
	*activeRun

	c      *ibBW
	fabric *fabric.Fabric
	help   string // what the program says of its options
	tests  []bwTest
	ports  []*fabric.Port          // those that are measured
	reach  map[*fabric.Port]string // the subnet in which others reach a port, "": not told
	faults []bwFault
	worked map[bwWay]bool
}

// program asks the program what it can.
func (b *bwRun) program() bool {
	b.at("run %s --help", b.c.Program)
	help, err := rdma.PerftestHelp(b.ctx, b.env.Host, b.c.Program)
	b.help = help
	switch {
	case err != nil:
		b.failures = true
		b.report(checks.Device{}, checks.Finding{Code: "ib.bw.program", Severity: checks.Unknown, Want: "perftest", Got: err.Error()}, "cannot run %s", b.c.Program)
		return false
	case b.c.GDR && !strings.Contains(help, "--use_cuda"):
		b.noCUDA()
		return false
	}
	return true
}

func (b *bwRun) noCUDA() {
	b.failures = true
	b.report(checks.Device{}, checks.Finding{Code: "ib.bw.cuda", Severity: checks.Unknown, Want: "one that is built with CUDA"}, "%s cannot use the memory of GPUs", b.c.Program)
}

// run measures all of them, round by round.
func (b *bwRun) run() {
	defer b.tellFaults()
	for b.ctx.Err() == nil {
		if len(b.tests) == 0 {
			if b.tests = b.repeats(); len(b.tests) == 0 {
				return
			}
		}
		round, rest := b.round()
		if !b.timeFor(round) {
			b.untested()
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
			return // which says so
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

// untested reports the tests for which the time was too short. A test that hung has had its
// time already; any other error decides nothing before a second run.
func (b *bwRun) untested() {
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
		b.report(t.from.Subject(), checks.Finding{Code: "ib.bw.untested", Severity: checks.Unknown, Want: fmt.Sprintf("-t above %s", b.c.Time)}, "not measured: the time is up")
	}
}
