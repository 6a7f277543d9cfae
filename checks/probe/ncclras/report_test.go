package ncclras

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// head is the beginning of a report of 2.26, after the documentation of NCCL.
const head = `NCCL version 2.26.2 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
`

func TestParse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want []string
		say  string // version, communicators, ranks, status
	}{
		"well": {
			text: head + "    0         2         4         8        32        32   RUNNING  OK\n\nErrors\n======\n\nWarnings\n========\n\n",
			say:  "2.26.2 2 32 RUNNING OK",
		},
		"one lags": {
			text: head + `    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 6650
  Rank 21 has launched up to operation 6649 -- GPU 5 managed by process 3487984 on node 172.16.64.213

`,
			say:  "2.26.2 1 32 RUNNING MISMATCH",
			want: []string{"rank 21 (GPU 5 of node 172.16.64.213, process 3487984) has launched 6649 AllReduce operations, the first 6650"},
		},
		"two lag, GPUs are numbered anew, as in 2.24": {
			text: head + `    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  30 ranks have launched up to operation 6650
  2 ranks have not launched any operations
  Rank 3 -- GPU 0 (NVML 3) managed by process 71 on node 10.0.0.1
  Rank 4 -- GPU 0 (NVML 4) managed by process 72 on node 10.0.0.1

`,
			say: "2.26.2 1 32 RUNNING MISMATCH",
			want: []string{
				"rank 3 (GPU 3 of node 10.0.0.1, process 71) has launched 0 operations, the first 6650",
				"rank 4 (GPU 4 of node 10.0.0.1, process 72) has launched 0 operations, the first 6650",
			},
		},
		"the few are ahead": {
			text: head + `    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 6649
  Rank 0 has launched up to operation 6650 -- GPU 0 managed by process 71 on node 10.0.0.1

`,
			say: "2.26.2 1 32 RUNNING MISMATCH",
		},
		"dead": {
			text: head + `    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

`,
			say:  "2.26.2 1 32 RUNNING INCOMPLETE",
			want: []string{"a process (GPU 5 of node 172.16.64.213, process 3487984) is dead or cannot be reached", "rank 21 does not answer"},
		},
		"silent, as in 2.30": {
			text: strings.ReplaceAll(head, "\n", "\r\n") + `    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPUs 4,5 (NVML 6,7)

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 (NVML 7) managed by process 3487984 on node 172.16.64.213

`,
			say: "2.26.2 1 32 RUNNING INCOMPLETE",
			want: []string{
				"a process (GPU 6 of node 172.16.64.213, process 3487984) does not answer", // of a communicator that is not listed
				"rank 21 (GPU 7 of node 172.16.64.213, process 3487984) does not answer",
			},
		},
		"one has left": {
			text: head + `    0         1         4         8        32        32  FINALIZE  MISMATCH

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  31 ranks have status RUNNING
  Rank 7 has status FINALIZE -- GPU 7 managed by process 78 on node 10.0.0.1

`,
			say:  "2.26.2 1 32 FINALIZE MISMATCH",
			want: []string{"rank 7 (GPU 7 of node 10.0.0.1, process 78) has left its communicator or has an error"},
		},
		"JSON": {
			text: jsonOf(func(i int) string {
				return fmt.Sprintf(`{"rank":%d,"host":"10.0.0.1","pid":%d,"cuda_dev":0,"nvml_dev":%d,"status":{"init_state":0,"async_error":0,"finalize_called":false,"destroy_flag":false,"abort_flag":false},"collective_counts":{"AllGather":4,"AllReduce":%d}}`, i, 70+i, i, 100-i/7)
			}),
			say:  "2.28.7 1 8 RUNNING INCOMPLETE",
			want: []string{"rank 8 (GPU 8 of node 10.0.0.1, process 78) is dead or cannot be reached", "rank 7 (GPU 7 of node 10.0.0.1, process 77) has launched 99 AllReduce operations, the first 100"},
		},
	} {
		r, err := Parse([]byte(test.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, k := range r.Behind {
			got = append(got, k.Text())
		}
		if say := fmt.Sprintf("%s %d %d %s", r.Version, r.Comms, r.Ranks, r.Status); !slices.Equal(got, test.want) || say != test.say && name != "JSON" {
			t.Errorf("%s: %s\n%q\nwant %s\n%q", name, say, got, test.say, test.want)
		}
	}
}

func jsonOf(rank func(i int) string) string {
	var ranks []string
	for i := range 8 {
		ranks = append(ranks, rank(i))
	}
	return `{"nccl_version":"2.28.7","cuda_runtime_version":13000,"timestamp":"2026-11-26 10:00:00","communicators_count":1,"communicators":[{"hash":"0xcf26","secondary_hash":"0x1:0x2","size":9,"ranks_count":8,"missing_ranks_count":1,"ranks":[` +
		strings.Join(ranks, ",") + `],"missing_ranks":[{"rank":8,"host":"10.0.0.1","pid":78,"cuda_dev":0,"nvml_dev":8,"status":{"unresponsive":true,"considered_dead":true}}]}],"ras":{"collection_time_sec":0.01,"timeouts_count":0}}`
}

// Another service, or a hostile user, answers at the port.
func TestParseOther(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n", "{}", "{", `{"nccl_version":7}`, "ERROR: Unknown command VERBOSE\n", "Rank 0 -- GPU 0 managed by process 1 on node x\n"} {
		if r, err := Parse([]byte(text)); !errors.Is(err, ErrNoReport) {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

// The ranks that all wait for are named only if they are the few.
func TestLast(t *testing.T) {
	t.Parallel()
	lag := func(rank int, at uint64) Rank { return Rank{Rank: rank, Why: Lagging, At: at, Most: 10} }
	for _, test := range []struct {
		ranks  int
		behind []Rank
		want   string
	}{
		{8, nil, ""},
		{8, []Rank{{Rank: 1, Why: Dead}, lag(2, 9), lag(3, 9)}, "1"},
		{8, []Rank{lag(2, 9), lag(3, 8), lag(4, 9)}, "3"},
		{8, []Rank{lag(0, 9), lag(1, 9), lag(2, 9), lag(3, 9), lag(4, 9)}, ""},
	} {
		var got []string
		for _, k := range (&Report{Ranks: test.ranks, Behind: test.behind}).Last() {
			got = append(got, fmt.Sprint(k.Rank))
		}
		if strings.Join(got, ",") != test.want {
			t.Errorf("%+v: %q, want %q", test.behind, got, test.want)
		}
	}
}

// An answer is believed only about the job's own processes.
func TestLocate(t *testing.T) {
	t.Parallel()
	device := func(i int) string { return fmt.Sprintf("gpu%d", i) }
	here := func(pid int) *Report {
		return &Report{Behind: []Rank{{Rank: 3, PID: pid, Host: "10.0.0.1", GPU: 3, Why: Lagging, Op: "AllReduce", At: 5, Most: 6}}}
	}
	r := here(71)
	if err := r.Locate([]string{"10.0.0.1"}, []int{70, 71}, device); err != nil || r.Behind[0].Text() != "rank 3 (gpu3 of this node, process 71) has launched 5 AllReduce operations, the first 6" {
		t.Errorf("%v: %s", err, r.Behind[0].Text())
	}
	if err := here(72).Locate([]string{"10.0.0.1"}, []int{70, 71}, device); err == nil {
		t.Error("a process that is not the job's: want an error")
	}
	if r := here(72); r.Locate([]string{"10.0.0.2"}, []int{70, 71}, device) != nil || r.Behind[0].Here {
		t.Error("a process of another node: want no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "    0         1         4         8        32        32   RUNNING  MISMATCH\n\n#0-0 (27a0) MISMATCH\n  31 ranks have launched up to operation 6650\n  Rank 21 has launched up to operation 6649 -- GPU 5 managed by process 1 on node 10.0.0.1\n"))
	f.Add([]byte(jsonOf(func(i int) string { return fmt.Sprintf(`{"rank":%d,"collective_counts":{"x":%d}}`, i, i) })))
	f.Add([]byte("NCCL version \x1b[2J\nDEAD\n  Process 99999999999999999999 on node \xff managing GPU 1,2,,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err != nil {
			return
		}
		if len(r.Behind) > maxRanks {
			t.Fatalf("%d ranks", len(r.Behind))
		}
		_ = r.Locate([]string{"10.0.0.1"}, []int{1}, func(int) string { return "gpu0" })
		for _, k := range append(r.Last(), r.Behind...) {
			for _, c := range k.Text() + r.Version + r.Status {
				if c < ' ' || c > '~' {
					t.Fatalf("%q", k.Text())
				}
			}
			if len(k.Text()) > 500 {
				t.Fatalf("%d bytes: %q", len(k.Text()), k.Text())
			}
		}
	})
}
