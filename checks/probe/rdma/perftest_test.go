package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// perftestHost returns a node with such a program.
func perftestHost(t *testing.T, p fakesys.Perftest) (h *probe.Host, calls func() string) {
	t.Helper()
	root := t.TempDir()
	path := filepath.Join(root, "usr/bin/ib_write_bw")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	err := probetest.WriteProgram(path, []byte(p.Script()))
	if err != nil {
		t.Fatal(err)
	}
	return probe.NewHost(root), func() string {
		data, err := os.ReadFile(filepath.Join(root, "usr/bin/calls"))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
}

func loopback(device string) Perftest {
	end := PerftestEnd{Device: device, Port: "1", GID: -1}
	return Perftest{Program: "ib_write_bw", Server: end, Client: end, Size: 8 << 20, Duration: 4 * time.Second, Timeout: 10 * time.Second}
}

func TestPerftest(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.5", "25.01"} {
		h, calls := perftestHost(t, fakesys.Perftest{Version: version, Acts: map[string]string{"mlx5_1": "rate 0.00", "mlx5_2": "rate 12.5"}})
		var tests []Perftest
		for i := range 3 {
			tests = append(tests, loopback(fmt.Sprintf("mlx5_%d", i)))
		}
		tests[2].Client.GID, tests[2].Bidirectional, tests[2].Client.CPUs = 3, true, []int{0}
		tests[2].Client.GPU, tests[2].Client.Env = nil, []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", withoutMPS}
		var rates []float64
		for _, r := range Perftests(t.Context(), h, tests) {
			if r.Err != nil {
				t.Fatalf("%s: %v", version, r.Err)
			}
			rates = append(rates, r.Rate)
		}
		if !slices.Equal(rates, []float64{391.43, 0, 12.5}) {
			t.Errorf("%s: rates %v", version, rates)
		}
		for _, want := range []string{"LC_ALL=C -d mlx5_0 -i 1 -p ", " -s 8388608 -q 1 -D 4 -f 1 -F --report_gbits\n", " --report_gbits 127.0.0.1\n",
			" --report_gbits -b -x 3 127.0.0.1\n", "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES= " + withoutMPS + " LC_ALL=C -d mlx5_2 "} {
			if !strings.Contains(calls(), want) {
				t.Errorf("%s: no call %q in\n%s", version, want, calls())
			}
		}
	}
}

func TestPerftestFaults(t *testing.T) {
	t.Parallel()
	cuda := func(p *Perftest) { p.Server.GPU = []string{"--use_cuda=0"}; p.Client.GPU = p.Server.GPU }
	quick := func(p *Perftest) { p.Timeout = 700 * time.Millisecond }
	for _, c := range []struct {
		act    string
		change func(*Perftest)
		kind   PerftestKind
		text   string // of both versions
	}{
		{"transfer", nil, PerftestTransfer, "Completion with error at client"},
		{"link", nil, PerftestLink, "Unable to Connect the HCA's through the link"},
		{"memory", nil, PerftestMemory, "Couldn't allocate MR"},
		{"broken", nil, PerftestBroken, "it ended with 1: Failed to exchange data"},
		{"nodevice", nil, PerftestNoDevice, "Unable to find the Infiniband/RoCE device"},
		{"loader", nil, PerftestUnloadable, "error while loading shared libraries: libibverbs.so.1"},
		{"hang", quick, PerftestHung, "it did not end"},
		{"deaf", quick, PerftestHung, "did not"},
		{"silent", nil, PerftestGarbled, "it printed no table"},
		{"garbage", nil, PerftestGarbled, "its table has no average"},
		{"half", nil, PerftestGarbled, "a row of its table is not understood"},
		{"comma", nil, PerftestGarbled, `a rate in its table is not a number: "8388608 23912 0.00 391,43`},
		{"", cuda, PerftestNoCUDA, ""},
		{"", func(p *Perftest) { p.Client.GPU, p.Server.GPU = []string{"--novelty"}, []string{"--novelty"} }, PerftestNoOption, "unrecognized option '--novelty'"},
		{"", func(p *Perftest) { p.Program = "ib_write_bw_of_another" }, PerftestAbsent, "no such program"},
	} {
		for _, version := range []string{"4.5", "25.01"} {
			t.Run(fmt.Sprint(c.act, c.kind, version), func(t *testing.T) {
				t.Parallel()
				h, _ := perftestHost(t, fakesys.Perftest{Version: version, Acts: map[string]string{"mlx5_3": c.act}})
				p := loopback("mlx5_3")
				if c.change != nil {
					c.change(&p)
				}
				start := time.Now()
				r := Perftests(t.Context(), h, []Perftest{p})[0]
				if r.Err == nil || r.Err.Kind != c.kind || !strings.Contains(r.Err.Error(), c.text) {
					t.Errorf("%+v, want %d, %q", r.Err, c.kind, c.text)
				}
				if took := time.Since(start); took > 9*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// Two concurrent tests never have the same TCP port.
func TestClaimPort(t *testing.T) {
	t.Parallel()
	claimed := map[int]bool{}
	for range 3000 {
		port, err := claimPort()
		if err != nil {
			t.Fatal(err)
		}
		defer claimedPorts.Delete(port)
		if claimed[port] {
			t.Fatalf("port %d is claimed twice", port)
		}
		claimed[port] = true
	}
}

// If a server cannot listen, another program has taken its port, and the client has connected to
// that program: the client's message does not count.
func TestPerftestLostPort(t *testing.T) {
	t.Parallel()
	lost := probe.Exit{Status: 1, Errors: []byte("Couldn't listen to port 18515\n")}
	p := loopback("mlx5_3")
	for name, client := range map[string]probe.Exit{
		"a rate":   {Output: []byte(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 8388608    23912            0.00               391.43 \t\t     0.005833\n")},
		"an error": {Status: 1, Errors: []byte(" Completion with error at client\n")},
	} {
		if r := p.result(client, lost); r.Err == nil || r.Err.Kind != PerftestNoPort {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// One failure among eight is found, and does not hide the others.
func TestPerftestOneOfEight(t *testing.T) {
	t.Parallel()
	h, _ := perftestHost(t, fakesys.Perftest{Acts: map[string]string{"mlx5_3": "transfer"}})
	var tests []Perftest
	for i := range 8 {
		tests = append(tests, loopback(fmt.Sprintf("mlx5_%d", i)))
	}
	for i, r := range Perftests(t.Context(), h, tests) {
		if (r.Err != nil) != (i == 3) || i != 3 && r.Rate != 391.43 {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// When the context ends no process is left.
func TestPerftestStops(t *testing.T) {
	t.Parallel()
	h, _ := perftestHost(t, fakesys.Perftest{Acts: map[string]string{"mlx5_0": "hang"}})
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, stop)
	start := time.Now()
	r := Perftests(ctx, h, []Perftest{loopback("mlx5_0")})[0]
	if took := time.Since(start); r.Err == nil || took > 8*time.Second {
		t.Errorf("%+v after %v", r, took)
	}
	if list, err := filepath.Glob("/proc/[0-9]*/cmdline"); err == nil {
		for _, file := range list {
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), h.Path("/usr/bin/ib_write_bw")) {
				t.Errorf("%s is left: %q", file, text)
			}
		}
	}
}

func TestPerftestHelp(t *testing.T) {
	t.Parallel()
	for _, cuda := range []bool{true, false} {
		h, _ := perftestHost(t, fakesys.Perftest{CUDA: cuda})
		help, err := PerftestHelp(t.Context(), h, "ib_write_bw")
		if err != nil || strings.Contains(help, "--use_cuda_bus_id") != cuda {
			t.Errorf("CUDA %v: %q, %v", cuda, help, err)
		}
	}
	_, err := PerftestHelp(t.Context(), probe.NewHost(t.TempDir()), "ib_write_bw")
	if e, ok := errors.AsType[*PerftestError](err); !ok || e.Kind != PerftestAbsent {
		t.Errorf("where it is not: %v", err)
	}
}

// These units differ between versions.
func TestParsePerftest(t *testing.T) {
	t.Parallel()
	const row = " 65536      5000             0.00               1000.00\t\t   0.1\n"
	for _, unit := range []string{"MB", "MiB"} {
		if rate, err := parsePerftest([]byte(" #bytes     #iterations    BW peak["+unit+"/sec]    BW average["+unit+"/sec]   MsgRate[Mpps]\n"+row), 65536); err != nil || rate < 8.388 || rate > 8.389 {
			t.Errorf("%s: %v, %v", unit, rate, err)
		}
	}
	for _, bad := range []string{"nan", "inf", "-1", "x"} {
		text := " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n" + strings.Replace(row, "1000.00", bad, 1)
		if rate, err := parsePerftest([]byte(text), 65536); err == nil {
			t.Errorf("%s: %v", bad, rate)
		}
		if rate, err := parsePerftest([]byte(strings.Replace(text, bad, "5", 1)), 8<<20); err == nil {
			t.Errorf("of another size: %v", rate)
		}
	}
}

// latencyText is a report of ib_write_lat 25.01.
const latencyText = `---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF		Device         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       1000          1.02           3.79         1.05     	       1.06        	0.07   		1.19    		3.79   
---------------------------------------------------------------------------------------
`

func TestParseLatency(t *testing.T) {
	t.Parallel()
	if latency, err := parseLatency([]byte(latencyText), 2); latency != 1.05 || err != nil {
		t.Errorf("%v, %v", latency, err)
	}
	for bad, want := range map[string]string{
		strings.Replace(latencyText, "1.05", "nan", 1):                "a latency in its table is not a number",
		strings.Replace(latencyText, "1.05", "-1", 1):                 "a latency in its table is not a number",
		strings.Replace(latencyText, "1.05", "1,05", 1):               "a latency in its table is not a number",
		strings.Replace(latencyText, " 2  ", " 4  ", 1):               "a row of its table is not understood",
		latencyText[:strings.Index(latencyText, "3.79")]:              "a row of its table is not understood",
		latencyText[:strings.Index(latencyText, " 2       1000")]:     "its table has no row",
		latencyText[:strings.Index(latencyText, "#bytes")]:            "it printed no table",
		" #bytes        #iterations       t_avg[usec]    tps average": "its table has no typical latency", // of -D
	} {
		if latency, err := parseLatency([]byte(bad), 2); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, %v, want %s of\n%s", latency, err, want, bad)
		}
	}
}

// ib_write_lat has none of the options of a bandwidth.
func TestLatencyCommand(t *testing.T) {
	t.Parallel()
	p := loopback("mlx5_3")
	p.Program, p.Latency, p.Size, p.Iterations = "ib_write_lat", true, 2, 1000
	p.Client.GID = 3
	if got, want := strings.Join(p.command(&p.Client, 18515).Argv, " "), "ib_write_lat -d mlx5_3 -i 1 -p 18515 -s 2 -n 1000 -F -x 3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzParseLatency(f *testing.F) {
	f.Add([]byte(latencyText))
	f.Fuzz(func(t *testing.T, data []byte) {
		latency, err := parseLatency(data, 2)
		if err == nil && !(latency >= 0) {
			t.Errorf("latency %v", latency)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("error %q", err)
		}
	})
}

func FuzzParsePerftest(f *testing.F) {
	f.Add([]byte(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 8388608    23912            0.00               391.43 \t\t     0.005833\n"))
	f.Add([]byte("#bytes BW average[MB/sec]\n\x00\n8388608 1 2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rate, err := parsePerftest(data, 8<<20)
		if err == nil && !(rate >= 0) {
			t.Errorf("rate %v", rate)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("error %q", err)
		}
	})
}

const withoutMPS = "CUDA_MPS_PIPE_DIRECTORY=/proc/none-for-nhc-gpu"
