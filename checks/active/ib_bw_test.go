package active

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestIBBW(t *testing.T) { checktest.Run(t, "check_ib_bw") }

var _ = checktest.Table("check_ib_bw", func(string) []checktest.Scenario {
	return bwScenarios("check_ib_bw", false)
})

func TestIBBWGDR(t *testing.T) { checktest.Run(t, "check_ib_bw_gdr") }

var _ = checktest.Table("check_ib_bw_gdr", func(string) []checktest.Scenario {
	return append(testGDR("check_ib_bw_gdr"), bwSome("check_ib_bw_gdr", "below the floor", "far from its peers", "RoCE")...)
})

func TestIBWriteBW(t *testing.T)       { checktest.Run(t, "check_ib_write_bw") }
func TestIBWriteBWGDR(t *testing.T)    { checktest.Run(t, "check_ib_write_bw_gdr") }
func TestIBBWLoopGDR(t *testing.T)     { checktest.Run(t, "check_ib_bw_loop_gdr") }
func TestIBBWNonGDR(t *testing.T)      { checktest.Run(t, "check_ib_bw_non_gdr") }
func TestIBWriteBWNonGDR(t *testing.T) { checktest.Run(t, "check_ib_write_bw_non_gdr") }

var (
	_ = checktest.Table("check_ib_write_bw", bwAlias)
	_ = checktest.Table("check_ib_write_bw_gdr", bwAlias)
	_ = checktest.Table("check_ib_bw_loop_gdr", bwAlias)
	_ = checktest.Table("check_ib_bw_non_gdr", bwAlias)
	_ = checktest.Table("check_ib_write_bw_non_gdr", bwAlias)
)

func bwAlias(name string) []checktest.Scenario { return bwSome(name) }

// bwSome returns some of the scenarios, for another name of the check.
func bwSome(name string, more ...string) (list []checktest.Scenario) {
	which := append(more, "healthy, of Debian 13", "carries nothing", "no program")
	for _, s := range bwScenarios(name, strings.HasSuffix(name, "_gdr") && !strings.Contains(name, "non")) {
		if slices.Contains(which, s.Name) {
			list = append(list, s)
		}
	}
	return list
}

// onPorts returns a line on a node with a fake perftest, which the self-test's nodes lack.
func onPorts(name string, words []string, sys *fakesys.Node, p fakesys.Perftest, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
	sys.AddPerftest(p)
	if change != nil {
		change(sys)
	}
	n := checktest.FabricNode(sys)
	return checktest.Scenario{Name: name, Words: words, Files: n.Files, Links: n.Links, NVML: n.NVML, Past: "/past", Want: want, UnitOnly: true}
}

// oneActs returns a program with another behaviour of mlx5_3.
func oneActs(act string) fakesys.Perftest {
	return fakesys.Perftest{Acts: map[string]string{"mlx5_3": act}}
}

// lesserSlot puts mlx5_3 into a slot of eight lanes.
func lesserSlot(n *fakesys.Node) {
	slot := path.Base(path.Dir(n.Dir(fakesys.HCAAddress(3))))
	n.Set(slot, "max_link_width", "8").Set(slot, "current_link_width", "8").Set(fakesys.HCAAddress(3), "current_link_width", "8")
}

// bwScenarios are common to all names of the check.
func bwScenarios(name string, gdr bool) (list []checktest.Scenario) {
	memory := "RDMA write"
	if gdr {
		memory += " of GPU memory"
	}
	on := func(text string, words []string, p fakesys.Perftest, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
		p.CUDA = p.CUDA || gdr
		return onPorts(text, words, fakesys.DGXH100(), p, change, want...)
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	says := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.bw." + code, Severity: severity, Want: want, Got: got}, text)
	}
	node := func(code, want, got, text string) checks.Finding {
		f := checks.Finding{Code: "ib.bw." + code, Severity: checks.Unknown, Want: want, Got: got}
		f.Message = name + ":  " + text + checktest.WantGot(f)
		return f
	}
	slow := "212.4 Gb/s"
	floor := &checks.Platform{Name: "HGX H100", Floors: []checks.Floor{{Test: "ib_write_bw", Algorithm: "host", Size: 1 << 20, Ranks: 8, Value: 380, Unit: "Gb/s"}, {Test: "ib_write_bw", Algorithm: "host", Size: 1 << 20, Ranks: 1, Value: 380, Unit: "Gb/s"},
		{Test: "ib_write_bw", Algorithm: "gdr", Size: 8 << 20, Ranks: 8, Value: 380, Unit: "Gb/s"}}}
	below := on("below the floor", nil, fakesys.Perftest{Acts: map[string]string{"mlx5_3": "rate 371.50"}}, nil, says(checks.Warn, "floor", "at least 380.0 Gb/s", "371.5 Gb/s", memory+" (figure ib_write_bw of the platform HGX H100)"))
	below.Platform = floor
	var all []checks.Finding
	for i := range 8 {
		all = append(all, checktest.PortFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.bw.rate", Severity: checks.Warn, Want: "at least 340.0 Gb/s", Got: "250.0 Gb/s"}, memory+" is far below the port's 400 Gb/s"))
	}
	down := says(checks.Skip, "down", "", "DOWN", "not measured: see check_ib_ports for a port that is not ACTIVE")
	list = append(list,
		on("healthy, of Debian 12", nil, fakesys.Perftest{Version: "4.5"}, nil),
		on("healthy, of Debian 13", checktest.Of("390", "2M"), fakesys.Perftest{Version: "25.01"}, nil).OrTable(map[string]any{"rate": 390.0, "size": "2M"}),
		on("below the words", checktest.Of("-w", "380"), oneActs("rate 371.50"), nil, says(checks.Fail, "slow", "at least 380.0 Gb/s", "371.5 Gb/s", memory)),
		below,
		on("far from its peers", checktest.Of("-D", "1", "-s", "64K"), oneActs("rate 212.40"), nil, says(checks.Fail, "peers", "at least 352.3 Gb/s", slow, memory+": far from its peers (median 391.4 Gb/s)")),
		on("far from its peers, in a slower slot", checktest.Of("-D", "1", "-s", "64K"), oneActs("rate 212.40"), lesserSlot,
			says(checks.Warn, "peers", "at least 352.3 Gb/s", slow, memory+": far from its peers (median 391.4 Gb/s) (its slot is 32 GT/s x8, that of mlx5_0:1 32 GT/s x16)")),
		on("slower than its slower slot", checktest.Of("-D", "1", "-s", "64K"), oneActs("rate 112.40"), lesserSlot,
			says(checks.Fail, "peers", "at least 352.3 Gb/s", "112.4 Gb/s", memory+": far from its peers (median 391.4 Gb/s)")),
		on("far from its peers, with lanes lost", checktest.Of("-D", "1", "-s", "64K"), oneActs("rate 212.40"), func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "current_link_width", "8") },
			says(checks.Fail, "peers", "at least 352.3 Gb/s", slow, memory+": far from its peers (median 391.4 Gb/s)")),
		on("all are slow", nil, fakesys.Perftest{Rate: "250.00"}, nil, all...),
		on("carries nothing", nil, oneActs("transfer"), nil, says(checks.Fail, "failed", "", "Completion with error at client", "no rate")),
		on("carries nothing once, and something when it is alone", nil, oneActs("transfer once"), nil,
			says(checks.Warn, "repeated", "", "Completion with error at client", "the first run failed, a second run alone succeeded")),
		on("no link", nil, oneActs("link"), nil, says(checks.Fail, "failed", "", "Unable to Connect the HCA's through the link", "no rate")),
		on("not there for verbs", nil, oneActs("nodevice"), nil, says(checks.Fail, "failed", "", "Unable to find the Infiniband/RoCE device", "no rate")),
		on("none carries anything", nil, fakesys.Perftest{Acts: map[string]string{"mlx5_*": "transfer"}}, nil, noWay(name, "Completion with error at client")...),
		on("none has a link", nil, fakesys.Perftest{Acts: map[string]string{"mlx5_*": "link"}}, nil, noWay(name, "Unable to Connect the HCA's through the link")...),
		on("one alone carries nothing", checktest.Of("-d", "mlx5_3"), oneActs("transfer"), nil, noWay(name, "Completion with error at client")[3]),
		on("the first carries nothing, one after the other", checktest.Of("--serial"), fakesys.Perftest{Acts: map[string]string{"mlx5_0": "transfer"}}, nil,
			checktest.PortFinding(name, "mlx5_0", 0, checks.Finding{Code: "ib.bw.failed", Severity: checks.Fail, Got: "Completion with error at client"}, "no rate")),
		broken(on("garbage", nil, oneActs("garbage"), nil, says(checks.Unknown, "failed", "", `its table has no average: "#bytes is all that there is"`, "no rate"))),
		broken(on("half a table", checktest.Of("-d", "mlx5_3"), oneActs("half"), nil, says(checks.Unknown, "failed", "", fmt.Sprintf("a row of its table is not understood: %q", fmt.Sprint(map[bool]int{true: 8 << 20, false: 1 << 20}[gdr])+" 23912"), "no rate"))),
		broken(on("it alone, and broken", checktest.Of("-d", "mlx5_3"), oneActs("broken"), nil, says(checks.Unknown, "failed", "", "it ended with 1: "+brokenTail, "no rate"))),
		broken(on("no program", checktest.Of("-p", "/opt/perftest/ib_write_bw"), fakesys.Perftest{}, nil, node("program", "perftest", "no such program", "cannot run /opt/perftest/ib_write_bw"))),
		broken(on("it lacks a library", checktest.Of("-d", "mlx5_3"), oneActs("loader"), nil, says(checks.Unknown, "program", "", "error while loading shared libraries: libibverbs.so.1: cannot open shared object file: No such file or directory", "no rate"))),
		on("one is down", nil, fakesys.Perftest{}, func(n *fakesys.Node) { n.Down("mlx5_3") }, down),
		on("all are down", nil, fakesys.Perftest{}, func(n *fakesys.Node) {
			for i := range 8 {
				n.Down(fmt.Sprintf("mlx5_%d", i))
			}
		}, checks.Finding{Code: "ib.inactive", Severity: checks.Unknown, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		on("no such device", checktest.Of("-d", "mlx5_9"), fakesys.Perftest{}, nil, checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none", Message: name + ":  mlx5_9: no such RDMA device or port"}),
		checktest.Scenario{Name: "no RDMA device", Want: []checks.Finding{{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}}},
		on("no time for it", checktest.Of("-t", "3", "-d", "mlx5_3"), fakesys.Perftest{}, nil, says(checks.Unknown, "untested", "-t above 3s", "", "not measured: time limit reached")),
		on("another transport", checktest.Of("-d", "mlx5_3"), fakesys.Perftest{}, func(n *fakesys.Node) { n.Links[n.Dir(fakesys.HCAAddress(3))+"/driver"] = "../../bus/pci/drivers/efa" },
			says(checks.Skip, "kind", "", "EFA", "not measured: ib_write_bw has no transport for it")),
	)
	bare := func(n *fakesys.Node) {
		for i := range 4 {
			n.Set("rocep3s0", fmt.Sprintf("ports/1/gids/%d", i), "0000:0000:0000:0000:0000:0000:0000:0000")
		}
	}
	return append(list,
		onPorts("RoCE", nil, fakesys.RoCE(), fakesys.Perftest{CUDA: gdr}, nil),
		onPorts("RoCE without an address", checktest.Of("-d", "rocep3s0"), fakesys.RoCE(), fakesys.Perftest{CUDA: gdr}, bare,
			checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.bw.gid", Severity: checks.Unknown, Want: "RoCE v2 with an IP address", Got: "none"}, "not measured: no usable GID")))
}

// noWay returns the findings about eight ports that all fail to connect.
func noWay(name, got string) []checks.Finding {
	return onAll(8, func(i int) checks.Finding {
		return checktest.PortFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.bw.way", Severity: checks.Unknown, Got: got}, "no rate, on no port of this kind")
	})
}

const brokenTail = "Failed to exchange data between server and clients"

// bwRoot creates a node with eight ports and a fake program.
func bwRoot(t *testing.T, n *fakesys.Node, p fakesys.Perftest) (root string, calls func() string) {
	t.Helper()
	root = t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "usr/bin/ib_write_bw")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := checktest.WriteProgram(path, p.Script()); err != nil {
		t.Fatal(err)
	}
	return root, func() string {
		data, err := os.ReadFile(filepath.Join(root, "usr/bin/calls"))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
}

func bwOf(t *testing.T, name string, words ...string) *ibBW {
	t.Helper()
	info, _ := checks.Lookup(name)
	c, ok := info.New().(*ibBW)
	if !ok {
		t.Fatalf("%s is not an ibBW", name)
	}
	if err := checks.Bind(c, words); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestIBBWCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		node  *fakesys.Node
		words []string
		want  []string // among the calls
		rates string   // part of the finding about them
	}{
		{fakesys.DGXH100(), nil, []string{"-d mlx5_0 -i 1 -p ", "-s 1048576 -q 2 -D 4 -f 1 -F --report_gbits 127.0.0.1"}, "mlx5_0:1 391.4, mlx5_1:1 391.4"},
		{fakesys.DGXH100(), []string{"-b", "-D", "8", "--serial"}, []string{"-D 8 -f 2 -F --report_gbits -b 127.0.0.1"}, "RDMA write, both ways at once"},
		{fakesys.RoCE(), nil, []string{"-d rocep3s0 -i 1 -p ", "--report_gbits -x 3 127.0.0.1"}, "rocep3s0:1 391.4"},
		{fakesys.DGXH100(), []string{"--pairs"}, []string{"-d mlx5_0", "-d mlx5_1"}, "mlx5_0:1 to mlx5_1:1 391.4, mlx5_2:1 to mlx5_3:1 391.4"},
	} {
		root, calls := bwRoot(t, c.node, fakesys.Perftest{})
		got := bwOf(t, "check_ib_bw", c.words...).Run(t.Context(), &checks.Env{Host: probe.NewHost(root)})
		if checks.Worst(got) != checks.OK || !slices.ContainsFunc(got, func(f checks.Finding) bool { return f.Code == "ib.bw.rates" && strings.Contains(f.Message, c.rates) }) {
			t.Errorf("%v: no %q in %v", c.words, c.rates, got)
		}
		for _, want := range c.want {
			if !strings.Contains(calls(), want) {
				t.Errorf("%v: no %q in\n%s", c.words, want, calls())
			}
		}
	}
}

// Ports that would slow each other down run one after another.
func TestIBBWRounds(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:23:00.1", Above: []string{"0000:33:01.0"}, ID: "15b3:1021", Driver: "mlx5_core", Speed: "32.0 GT/s PCIe", Width: 16},
		Name: "mlx5_19", Type: "MT4129", Board: "MT_0000000838", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0x90})
	root, _ := bwRoot(t, n, fakesys.Perftest{})
	for words, want := range map[string]string{"": "8 1", "--serial": "1 1 1 1 1 1 1 1 1", "--pairs": "5 4", "--gdr": "8 1", "--pairs -b": "5"} {
		env := &checks.Env{Host: probe.NewHost(root)}
		nvml.Set(env.Host, checktest.H100s(), nil)
		f, _ := fabric.Ask(env, "check_ib_bw")
		ports, _ := f.Judged(nil, "")
		b := &bwRun{activeRun: &activeRun{env: env, gpus: pointers(checktest.H100s().GPUs)}, c: bwOf(t, "check_ib_bw", strings.Fields(words)...)}
		b.plan(ports)
		var sizes []string
		for len(b.tests) > 0 {
			var round []bwTest
			round, b.tests = b.nextRound()
			sizes = append(sizes, fmt.Sprint(len(round)))
		}
		if got := strings.Join(sizes, " "); got != want {
			t.Errorf("%q: rounds of %s, want %s", words, got, want)
		}
	}
}

func pointers(gpus []nvml.GPU) (list []*nvml.GPU) {
	for i := range gpus {
		list = append(list, &gpus[i])
	}
	return list
}

func TestIBBWRefuses(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{"-D", "0"}, {"-D", "2h"}, {"-s", "1"}, {"-s", "2G"}, {"-p", "-x"}, {"-p", ""}, {"-w", "fast"}, {"--gdr=yes", "1", "2", "3"}} {
		if err := checks.Bind(&ibBW{Duration: time.Second, Program: "ib_write_bw"}, words); err == nil {
			t.Errorf("%q is bound", words)
		}
	}
}

// A run that hangs is killed and repeated alone, and delays no other. If it hangs again, or no
// time is left, its port fails. Any other error without time for a repetition decides nothing.
func TestIBBWHang(t *testing.T) {
	t.Parallel()
	fails := checktest.PortFinding("check_ib_bw", "mlx5_3", 3, checks.Finding{Code: "ib.bw.failed", Severity: checks.Fail, Got: "it did not end"}, "no rate after 7s")
	passing := checktest.PortFinding("check_ib_bw", "mlx5_3", 3, checks.Finding{Code: "ib.bw.repeated", Severity: checks.Warn, Got: "it did not end"}, "the first run failed, a second run alone succeeded")
	late := checktest.PortFinding("check_ib_bw", "mlx5_3", 3, checks.Finding{Code: "ib.bw.failed", Severity: checks.Unknown, Want: "-t above 25s", Got: "Completion with error at client"}, "no rate, and no time left to repeat it alone")
	for act, c := range map[string]struct {
		words   []string
		servers int
		want    []checks.Finding
	}{
		"hang":      {servers: 2, want: []checks.Finding{fails}},
		"hang once": {servers: 2, want: []checks.Finding{passing}},
		"late":      {words: []string{"-D", "20", "-t", "25"}, servers: 1, want: []checks.Finding{late}},
		"hang ":     {words: []string{"-t", "14"}, servers: 1, want: []checks.Finding{fails}},
	} {
		t.Run(act, func(t *testing.T) {
			t.Parallel()
			root, calls := bwRoot(t, fakesys.DGXH100(), oneActs(strings.TrimSpace(act)))
			env := &checks.Env{Host: probe.NewHost(root)}
			bw := bwOf(t, "check_ib_bw", append([]string{"-D", "1"}, c.words...)...)
			if bw.start = 6 * time.Second; act == "late" {
				bw.start = time.Minute
			}
			got := slices.DeleteFunc(bw.Run(t.Context(), env), func(f checks.Finding) bool { return f.Severity == checks.OK })
			if !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if n := len(regexp.MustCompile(`(?m) -d mlx5_3 .*--report_gbits$`).FindAllString(calls(), -1)); n != c.servers {
				t.Errorf("%d servers for it, want %d:\n%s", n, c.servers, calls())
			}
		})
	}
}

// The real program, if perftest is installed: it finds no device on this machine, which is not a
// fault of the recorded node's ports.
func TestIBBWOfPerftest(t *testing.T) {
	t.Parallel()
	const program = "/usr/bin/ib_write_bw"
	if _, err := os.Stat(program); err != nil {
		need.Skip(t, "no %s: tests/install-deps.sh installs it", program)
	}
	if list, err := os.ReadDir("/sys/class/infiniband"); err == nil && len(list) > 0 {
		t.Skip("this machine has RDMA devices")
	}
	n := fakesys.DGXH100()
	n.Links["usr/bin/ib_write_bw"] = program
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root)}
	got := bwOf(t, "check_ib_bw").Run(t.Context(), env)
	if len(got) != 8 {
		t.Errorf("%d findings: %v", len(got), got)
	}
	for i, f := range got {
		want := checktest.PortFinding("check_ib_bw", fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.bw.failed", Severity: checks.Unknown, Got: "Unable to find the Infiniband/RoCE device"}, "no rate")
		if f != want {
			t.Errorf("got %+v, want %+v", f, want)
		}
	}
	nvml.Set(env.Host, checktest.H100s(), nil)
	if got := bwOf(t, "check_ib_bw_gdr").Run(t.Context(), env); len(got) != 1 || got[0].Code != "ib.bw.cuda" {
		t.Errorf("Debian's has no CUDA, got %v", got)
	}
	if _, findings := fabric.Ask(&checks.Env{Host: probe.NewHost("/")}, "check_ib_bw"); checks.Worst(findings) != checks.Skip {
		t.Errorf("of this machine: %v", findings)
	}
}
