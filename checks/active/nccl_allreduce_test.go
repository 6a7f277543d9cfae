package active

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestNCCLAllReduce(t *testing.T) { checktest.Run(t, "check_nccl_allreduce") }
func TestNCCLAllReduceIBLoopback(t *testing.T) {
	checktest.Run(t, "check_nccl_allreduce_ib_loopback")
}

var (
	_ = checktest.Table("check_nccl_allreduce", allReduceScenarios)
	_ = checktest.Table("check_nccl_allreduce_ib_loopback", allReduceScenarios)
)

func allReduceScenarios(name string) (list []checktest.Scenario) {
	says := func(f checks.Finding, text string) checks.Finding { return ncclSays(name, f, text) }
	rate, peers, network, wires, floor := "480.1 GB/s", "390.1", "nvls", "nvlink", "500"
	if name != "check_nccl_allreduce" {
		rate, peers, network, wires, floor = "40.0 GB/s", "40.0", "ring, over the network", "network", "50"
	}
	slow := says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least " + floor + ".0 GB/s", Got: rate}, "bus bandwidth of all_reduce, 64 KiB by "+network)
	words := checktest.Of("-t", "10", "30", "1", "64K")
	healthy := withNCCL(checktest.OnGPUs("fast enough", words, nil))
	for _, s := range checktest.GPUCommon(name, words...) {
		if !strings.HasPrefix(s.Name, "one GPU has no handle") {
			list = append(list, s)
		}
	}
	list = append(list,
		healthy,
		withNCCL(checktest.OnGPUs("a topology file first, then the size", checktest.Of("-t", "10", "30", "1", "/opt/topo.xml", "64K"), nil,
			says(checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: "no such file"}, "NCCL_TOPO_FILE=/opt/topo.xml in this line is not a topology of this node"))).OrTable(map[string]any{"bandwidth": 30, "repeats": 1, "size": "64K", "topology": "/opt/topo.xml", "limit": 10}),
		withNCCL(checktest.OnGPUs("slow in every try", checktest.Of("-t", "10", floor, "3", "64K"), nil, slow)),
		withNCCL(checktest.OnGPUs("one slow GPU of eight", words, nil, checktest.GPUFinding(name, 3, checks.Finding{Code: "nccl.peers", Severity: checks.Fail, Want: "at least " + wantOfPeers[peers] + " GB/s", Got: "31.0 GB/s"},
			"exchange with each other GPU by "+wires+", each way: far from its peers (median "+peers+" GB/s)")), "3 links = 31"),
	)
	return list
}

// wantOfPeers returns the limit of peers with a median.
var wantOfPeers = map[string]string{"390.1": "331.6", "40.0": "34.0"}

func TestNCCLAllReduceWords(t *testing.T) {
	t.Parallel()
	c := &ncclAllReduce{}
	if err := c.Bind(checktest.Of("460", "2", "", "")); err != nil {
		t.Fatal(err)
	}
	if n := c.full(); n.End != 16<<30 || n.Begin != 16<<30 || n.Repeats != 2 || n.Least != 460 || n.Topology != "" || n.Bound() != 45*time.Second {
		t.Errorf("%+v", n)
	}
	if c := (&ncclAllReduce{noP2P: true}); c.Bound() != 100*time.Second {
		t.Errorf("bound %v", c.Bound())
	}
	if c := (&ncclAllReduce{Seconds: 7}); c.Bound() != 7*time.Second {
		t.Errorf("bound %v", c.Bound())
	}
	for _, words := range [][]string{nil, {"0"}, {"-t", "-1", "5"}, {"5", "1", "16G", "8G"}, {"5", "1", "topo.xml"}, {"x"}} {
		if err := new(ncclAllReduce).Bind(words); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
}

func TestNCCLWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{
		nil, {"none"}, {"-b", "2G", "-e", "1G", "all_reduce"}, {"-f", "1", "all_reduce"}, {"--algo", "nvlink", "all_reduce"}, {"--groups", "-1", "all_reduce"},
		{"--nccl-tests", "build", "all_reduce"}, {"-n", "-1", "all_reduce"}, {"-w", "-1", "all_reduce"}, {"all_reduce", "all_gather"},
	} {
		if err := checks.Bind(new(nccl), words); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
	c := &nccl{}
	if err := checks.Bind(c, checktest.Of("--max-age", "1h", "--algo=nvls", "--no-p2p", "-e", "8G", "alltoall")); err != nil {
		t.Fatal(err)
	}
	if c.Freshness() != time.Hour || c.Algorithm != "nvls" || c.Bound() != 100*time.Second || c.test() != "all_to_all_no_p2p" || c.End != 8<<30 {
		t.Errorf("%+v", c)
	}
}
