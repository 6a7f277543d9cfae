package slurm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const (
	migOne = "MIG-11111111-2222-3333-4444-555555555555"
	migOld = "MIG-GPU-aaaaaaaa-bbbb-cccc-dddd-000000000003/7/0"
)

func TestJobFrom(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		env  string // NAME=value, a line each
		want Job
	}{
		{"empty environment", "", Job{UID: -1}},
		{"two GPUs", "SLURM_JOB_ID=1234\nSLURM_JOB_UID=5001\nSLURM_JOB_USER=alice\nSLURM_JOB_GPUS=3,1\nCUDA_VISIBLE_DEVICES=0,1\nSLURM_JOB_RESTART_COUNT=2",
			Job{ID: "1234", UID: 5001, User: "alice", Restart: 2, Share: SomeGPUs, Numbers: []int{1, 3}}},
		{"when it began", "SLURM_JOB_START_TIME=1700000000", Job{UID: -1, Began: time.Unix(1700000000, 0)}},
		{"its begin is unknown", "SLURM_JOB_START_TIME=-1", Job{UID: -1}},
		{"ranges", "SLURM_JOB_GPUS=0-2,2,7", Job{UID: -1, Share: SomeGPUs, Numbers: []int{0, 1, 2, 7}}},
		{"an older Slurm", "CUDA_VISIBLE_DEVICES=4", Job{UID: -1, Share: SomeGPUs, Numbers: []int{4}}},
		{"UUIDs of 26.05", "SLURM_JOB_GPUS=3,1\nCUDA_VISIBLE_DEVICES=" + uuidOf(4) + "," + uuidOf(6), Job{UID: -1, Share: SomeGPUs, Numbers: []int{1, 3}, UUIDs: []string{uuidOf(4), uuidOf(6)}}},
		{"UUIDs alone", "CUDA_VISIBLE_DEVICES=" + uuidOf(4), Job{UID: -1, Share: SomeGPUs, UUIDs: []string{uuidOf(4)}}},
		{"no GPU on a node with some", "SLURM_JOB_ID=1\nCUDA_VISIBLE_DEVICES=NoDevFiles", Job{ID: "1", UID: -1}},
		{"MIG", "SLURM_JOB_GPUS=9\nCUDA_VISIBLE_DEVICES=" + migOne, Job{UID: -1, Share: SomeGPUs, MIG: []string{migOne}, Shared: true}},
		{"MIG of an old driver", "CUDA_VISIBLE_DEVICES=" + migOld, Job{UID: -1, Share: SomeGPUs, MIG: []string{migOld}, Shared: true}},
		{"exclusive: all that Slurm knows of", "SLURM_JOB_OVERSUBSCRIBE=NO\nSLURM_JOB_GPUS=0,1,2,3", Job{UID: -1, Alone: true, Share: SomeGPUs, Numbers: []int{0, 1, 2, 3}}},
		{"exclusive, and Slurm knows of no GPU", "SLURM_JOB_OVERSUBSCRIBE=NO", Job{UID: -1, Alone: true, Share: AllGPUs}},
		{"the same, of 26.05", "SLURM_JOB_OVERSUBSCRIBE=NO\nSLURM_JOB_EXCLUSIVE=NODE", Job{UID: -1, Alone: true, Share: AllGPUs}},
		{"any job of 26.05", "SLURM_JOB_OVERSUBSCRIBE=NO\nSLURM_JOB_EXCLUSIVE=NO\nSLURM_JOB_GPUS=0,1", Job{UID: -1, Part: true, Share: SomeGPUs, Numbers: []int{0, 1}}},
		{"any job of 26.05, without a GPU", "SLURM_JOB_OVERSUBSCRIBE=NO\nSLURM_JOB_EXCLUSIVE=NO", Job{UID: -1, Part: true}},
		{"shared", "SLURM_JOB_OVERSUBSCRIBE=OK", Job{UID: -1, Part: true}},
		{"the user's alone", "SLURM_JOB_OVERSUBSCRIBE=USER", Job{UID: -1, Part: true}},
		{"an array", "SLURM_JOB_ID=107\nSLURM_ARRAY_JOB_ID=100\nSLURM_ARRAY_TASK_ID=7", Job{ID: "107", UID: -1}},
		{"SLUID", "SLURM_JOB_ID=7\nSLURM_JOB_SLUID=sEKNKTV3WPV500", Job{ID: "7", SLUID: "sEKNKTV3WPV500", UID: -1}},
		{"no SLUID", "SLURM_JOB_SLUID=sEKNKTV3WPV/00", Job{UID: -1}},
		{"one node", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=1", Job{ID: "7", UID: -1, OneNode: true}},
		{"the node of a step", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=2\nSLURM_NODELIST=gpu01\nSLURM_JOB_NODELIST=gpu01", Job{ID: "7", UID: -1}},
		{"its nodes", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=3\nSLURM_NODELIST=gpu[02-04]", Job{ID: "7", UID: -1, First: "gpu02"}},
		{"its one node", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=1\nSLURM_NODELIST=gpu09", Job{ID: "7", UID: -1, OneNode: true, First: "gpu09"}},
		{"a list that is none", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=1\nSLURM_NODELIST=../x", Job{ID: "7", UID: -1, OneNode: true}},
		{"the first component of a heterogeneous job", "SLURM_JOB_ID=6\nSLURM_JOB_NUM_NODES=2\nSLURM_HET_JOB_ID=6\nSLURM_NODELIST=gpu[01,03]", Job{ID: "6", UID: -1, Het: "6", First: "gpu01"}},
		{"another component", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=1\nSLURM_HET_JOB_ID=6\nSLURM_NODELIST=gpu09", Job{ID: "7", UID: -1, Het: "6"}},
		{"one node of a heterogeneous job", "SLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=1\nSLURM_HET_JOB_ID=6", Job{ID: "7", UID: -1, Het: "6"}},
		{"garbage", "SLURM_JOB_ID=1;reboot\nSLURM_JOB_UID=-1\nSLURM_JOB_USER=../../etc\nSLURM_JOB_GPUS=$(reboot)",
			Job{UID: -1, Share: AllGPUs, Strange: "SLURM_JOB_GPUS=$(reboot): want numbers of devices, or UUIDs of MIG devices"}},
		{"a range without end", "SLURM_JOB_GPUS=0-99999999", Job{UID: -1, Share: AllGPUs,
			Strange: "SLURM_JOB_GPUS=0-99999999: want numbers of devices, or UUIDs of MIG devices"}},
		{"half a MIG device", "CUDA_VISIBLE_DEVICES=MIG-x", Job{UID: -1, Share: AllGPUs,
			Strange: "CUDA_VISIBLE_DEVICES=MIG-x: want numbers of devices, or UUIDs of MIG devices"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := JobFrom(func(name string) string {
				for line := range strings.SplitSeq(tt.env, "\n") {
					if v, ok := strings.CutPrefix(line, name+"="); ok {
						return v
					}
				}
				return ""
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// An epilog without GPUs in its environment reads the record of the job.
func TestRecall(t *testing.T) {
	t.Parallel()
	two, none, whole := Record{GPUs: []GPU{{Minor: 6}, {Minor: 2}}}, Record{}, Record{Whole: true, GPUs: []GPU{{Minor: 0}}}
	tests := []struct {
		name   string
		job    Job
		record *Record
		want   Job
	}{
		{"the record's", Job{}, &two, Job{Share: SomeGPUs, Minors: []int{2, 6}}},
		{"none then, none now", Job{}, &none, Job{}},
		{"the whole node then", Job{}, &whole, Job{Share: AllGPUs, Alone: true}},
		{"unknown at its begin", Job{}, &Record{Unsure: true, GPUs: two.GPUs}, Job{Share: AllGPUs}},
		{"a part", Job{}, &Record{Shared: true, GPUs: two.GPUs}, Job{Share: SomeGPUs, Minors: []int{2, 6}, Shared: true}},
		{"no record", Job{}, nil, Job{Share: AllGPUs}},
		{"slurmd's word counts", Job{Share: SomeGPUs, Numbers: []int{1}}, &two, Job{Share: SomeGPUs, Numbers: []int{1}}},
		{"slurmd's word alone", Job{Share: SomeGPUs, Numbers: []int{1}}, nil, Job{Share: SomeGPUs, Numbers: []int{1}}},
	}
	for _, tt := range tests {
		tt.job.Recall(tt.record)
		if diff := cmp.Diff(tt.want, tt.job); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func uuidOf(i int) string { return fmt.Sprintf("GPU-aaaaaaaa-bbbb-cccc-dddd-%012d", i) }

// eight returns GPUs with minor numbers in reverse PCI order, as on some boards.
func eight() (node []GPU) {
	for i := range 8 {
		node = append(node, GPU{Index: i, Minor: 7 - i, PCI: fmt.Sprintf("0000:%02x:00.0", i), UUID: uuidOf(i)})
	}
	node[5].MIG = []string{migOne}
	return node
}

// slurmd's number of a GPU is its place in slurmd's list, not the number of its device file.
func TestScopeByNumber(t *testing.T) {
	t.Parallel()
	straight := func(minors ...int) (node []GPU) {
		for i, m := range minors {
			node = append(node, GPU{Index: i, Minor: m, PCI: fmt.Sprintf("0000:%02x:00.0", m)})
		}
		return node
	}
	all := straight(0, 1, 2, 3, 4, 5, 6, 7)
	broken := Numbering{Count: 7, Files: []int{0, 1, 2, 4, 5, 6, 7}}
	const list = ": list the files of the GPUs in gres.conf, File=/dev/nvidia[0-7]"
	tests := []struct {
		name   string
		conf   Numbering
		node   []GPU
		number int
		minor  int // -1: unknown
		why    string
	}{
		{"usual", Numbering{Count: 8, Files: []int{0, 1, 2, 3, 4, 5, 6, 7}}, all, 3, 3, ""},
		{"nothing is configured", Numbering{}, all, 3, 3, ""},
		{"gres.conf without a broken GPU", broken, all, 3, 4, ""},
		{"a GPU that is excluded from the driver", Numbering{Count: 7, Detect: "nvml"}, straight(0, 1, 2, 4, 5, 6, 7), 5, 6, ""},
		{"the same, by AutoDetect", Numbering{Count: 7, Files: broken.Files, Detect: "nvml"}, all, 3, 4, ""},
		{"files in another order", Numbering{Count: 2, Files: []int{5, 4}}, all, 0, 5, ""},
		{"nvml on a board that numbers its files otherwise", Numbering{Count: 8, Detect: "nvml"}, eight(), 0, 7, ""},
		{"nvidia on the same", Numbering{Count: 8, Detect: "nvidia"}, eight(), 0, 0, ""},
		{"files on the same", Numbering{Count: 2, Files: []int{6, 7}}, eight(), 0, 6, ""},
		{"unknown on the same", Numbering{Count: 8}, eight(), 0, -1, "slurmd's number 0 is /dev/nvidia7 or /dev/nvidia0" + list},
		{"a GPU was lost: before slurmd began, or after", Numbering{Count: 8, Detect: "nvml"}, straight(0, 1, 2, 4, 5, 6, 7), 4, -1, "slurmd's number 4 is /dev/nvidia5 or /dev/nvidia4" + list},
		{"one before the lost GPU", Numbering{Count: 8, Detect: "nvml"}, straight(0, 1, 2, 4, 5, 6, 7), 2, 2, ""},
		{"the last one: it was lost after", Numbering{Count: 8, Detect: "nvml"}, straight(0, 1, 2, 4, 5, 6, 7), 7, 7, ""},
		{"the lost GPU", Numbering{Count: 8, Files: []int{0, 1, 2, 3, 4, 5, 6, 7}}, straight(0, 1, 2, 4, 5, 6, 7), 3, -1, "no GPU of this node has the device /dev/nvidia3"},
		{"more than there are", Numbering{Count: 8, Detect: "nvml"}, all, 8, -1, "no GPU of this node has slurmd's number 8"},
		{"MIG instances", Numbering{Why: "it counts MIG instances"}, all, 3, -1, "slurmd's numbers are not those of GPUs: it counts MIG instances"},
	}
	for _, tt := range tests {
		s, why := ScopeOf(Job{Share: SomeGPUs, Numbers: []int{tt.number}}, tt.conf, tt.node)
		if why != tt.why || s.Known != (tt.minor >= 0) {
			t.Errorf("%s: known %v, why %q, want %q", tt.name, s.Known, why, tt.why)
		} else if s.Known && (len(s.Own) != 1 || s.Own[0].Minor != tt.minor) {
			t.Errorf("%s: %v, want /dev/nvidia%d", tt.name, s.Own, tt.minor)
		}
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		job  Job
		own  []int // indexes of eight(); nil: all, because unknown
		why  string
	}{
		{"the files of its prolog's record", Job{Share: SomeGPUs, Minors: []int{0, 6}}, []int{1, 7}, ""},
		{"UUIDs", Job{Share: SomeGPUs, Numbers: []int{0, 1}, UUIDs: []string{uuidOf(2), uuidOf(3)}}, []int{2, 3}, ""},
		{"a UUID that is gone", Job{Share: SomeGPUs, UUIDs: []string{uuidOf(2), uuidOf(9)}}, nil, "no GPU of this node has one of the UUIDs " + uuidOf(2) + ", " + uuidOf(9)},
		{"MIG", Job{Share: SomeGPUs, MIG: []string{migOne}}, []int{5}, ""},
		{"MIG of an old driver", Job{Share: SomeGPUs, MIG: []string{migOld}}, []int{3}, ""},
		{"no GPU", Job{Share: NoGPUs}, []int{}, ""},
		{"the whole node", Job{Share: AllGPUs, Minors: []int{0}}, nil, ""},
		{"a device that is gone", Job{Share: SomeGPUs, Minors: []int{0, 8}}, nil, "no GPU of this node has the device /dev/nvidia8"},
		{"a MIG device that is gone", Job{Share: SomeGPUs, MIG: []string{strings.Replace(migOne, "1", "9", 1)}}, nil,
			"no GPU of this node has the MIG device MIG-91111111-2222-3333-4444-555555555555"},
		{"garbage", Job{Share: AllGPUs, Strange: "garbage"}, nil, "garbage"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			node := eight()
			s, why := ScopeOf(tt.job, Numbering{}, node)
			if why != tt.why {
				t.Errorf("why is %q, want %q", why, tt.why)
			}
			own := map[int]bool{}
			for _, i := range tt.own {
				own[i] = true
			}
			for i, g := range node {
				want := tt.own == nil || own[i]
				if got := s.Inside(checks.Device{Kind: "gpu", PCI: g.PCI}); got != want {
					t.Errorf("GPU %d by its address: inside %v, want %v", i, got, want)
				}
				if got := s.Inside(checks.Device{Kind: "gpu", UUID: g.UUID}); got != want {
					t.Errorf("GPU %d by its UUID: inside %v, want %v", i, got, want)
				}
			}
			for _, d := range []checks.Device{{}, {Kind: "mount", Name: "/home"}, {Kind: "nvswitch", PCI: "0000:00:00.0"}, {Kind: "gpu"}} {
				if !s.Inside(d) {
					t.Errorf("%+v is outside, want inside: it is the node's, or its owner is unknown", d)
				}
			}
			if lost := (checks.Device{Kind: "gpu", PCI: "0000:ff:00.0"}); s.Inside(lost) != (tt.own == nil) {
				t.Errorf("a GPU that the driver has lost: inside %v, want %v: the job's are there", s.Inside(lost), tt.own == nil)
			}
		})
	}
}
