package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Job is the job that a prolog or an epilog runs for, as slurmd describes it.
// Only what has the form that Slurm gives it is taken over: some of it is the
// user's text.
type Job struct {
	ID      string // digits; "" if slurmd did not say
	Het     string // the id of the heterogeneous job that it is a component of; "" if of none
	Restart int    // how often it was requeued
	UID     int    // -1 if it is not known
	User    string
	Began   time.Time // when slurmctld started it; zero if it is not known
	Share   Share
	Minors  []int    // of SomeGPUs: the N of /dev/nvidiaN, in order
	MIG     []string // of SomeGPUs: UUIDs of MIG devices, in place of Minors
	Shared  bool     // its GPUs may have other jobs, too: MIG, gres/mps; of gres/shard nothing tells
	Alone   bool     // it has the node for itself
	Part    bool     // it has not: other jobs may be on the node; where neither is set nothing tells
	Strange string   // what could not be understood of its GPUs; it is AllGPUs then
}

// Share is how much of a node's GPUs a job has.
type Share int

// The shares.
const (
	NoGPUs   Share = iota // it has no GPU
	SomeGPUs              // those that are named
	AllGPUs               // the whole node, or nobody knows
)

func (s Share) String() string { return [...]string{"none", "some", "all"}[s] }

// JobFrom reads the job from the environment that slurmd gives prolog and
// epilog (tests/slurm runs it on 22.05, 24.11 and 26.05; MIG is from SchedMD's
// gres_gpu.c):
//
//   - SLURM_JOB_GPUS has the numbers of the device files of the job's GPUs, also
//     for gres/shard and gres/mps, and all of the node's for a job that has the
//     node for itself, whatever it asked for. A job without a GPU has none;
//   - CUDA_VISIBLE_DEVICES has the same numbers, and UUIDs where the GPUs are
//     split up by MIG, when SLURM_JOB_GPUS counts the MIG devices;
//   - a task of an array has a job id of its own, and nothing says that it is of
//     one: SLURM_ARRAY_JOB_ID is for slurmctld's prolog and for tasks.
//   - SLURM_JOB_START_TIME is in seconds of slurmctld's clock; 22.05 has none;
func JobFrom(env func(string) string) Job {
	j := Job{UID: -1, ID: digits(env("SLURM_JOB_ID")), User: userName(env("SLURM_JOB_USER")), Het: digits(env("SLURM_HET_JOB_ID"))}
	if n, err := strconv.Atoi(digits(env("SLURM_JOB_RESTART_COUNT"))); err == nil {
		j.Restart = n
	}
	if n, err := strconv.Atoi(digits(env("SLURM_JOB_UID"))); err == nil {
		j.UID = n
	}
	if n, err := strconv.ParseInt(digits(env("SLURM_JOB_START_TIME")), 10, 64); err == nil && n > 0 {
		j.Began = time.Unix(n, 0)
	}
	j.share(env)
	return j
}

func (j *Job) share(env func(string) string) {
	j.Shared = env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != ""
	j.Alone, j.Part = alone(env)
	visible := env("CUDA_VISIBLE_DEVICES")
	if strings.Contains(visible, "MIG-") {
		j.mig(visible)
		return
	}
	for _, name := range []string{"SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"} {
		if list := env(name); list != "" && list != noDevices {
			j.numbers(name, list)
			return
		}
	}
	if j.Alone { // on a node of whose GPUs Slurm does not know
		j.Share = AllGPUs
	}
}

// alone says whether the job has the node for itself. Before 26.05 an exclusive
// job is one with SLURM_JOB_OVERSUBSCRIBE=NO (22.05 says nothing); since then
// that is so for all, and SLURM_JOB_EXCLUSIVE tells: NO, NODE, USER, MCS, TOPO.
func alone(env func(string) string) (yes, no bool) {
	if exclusive := env("SLURM_JOB_EXCLUSIVE"); exclusive != "" {
		return exclusive == "NODE", exclusive != "NODE"
	}
	over := env("SLURM_JOB_OVERSUBSCRIBE")
	return over == "NO", over != "" && over != "NO"
}

// Recall fills in the GPUs of an ended job of whose GPUs slurmd says nothing. It
// cannot when slurmctld was restarted while the job ran, and need not when the
// job's prolog has failed (22.05, 24.11 and 26.05 run): the record of the prolog
// knows. Without a record, nil, the job may have had any.
func (j *Job) Recall(r *Record) {
	switch {
	case j.Share != NoGPUs:
	case r == nil || r.Unsure:
		j.Share = AllGPUs
	case r.Whole:
		j.Share, j.Alone, j.Part = AllGPUs, true, false
	case len(r.GPUs) > 0:
		j.Share, j.Shared = SomeGPUs, r.Shared
		for _, g := range r.GPUs {
			j.Minors = append(j.Minors, g.Minor)
		}
		slices.Sort(j.Minors)
	}
}

// noDevices is CUDA_VISIBLE_DEVICES of a task without a GPU on a node that has some.
const noDevices = "NoDevFiles"

// numbers takes a list of numbers and ranges.
func (j *Job) numbers(name, list string) {
	for word := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(word, "-")
		a, err := strconv.Atoi(digits(low))
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(digits(high))
		}
		if err != nil || b < a || b > maxMinor {
			j.strange(name, list)
			return
		}
		for n := a; n <= b; n++ {
			j.Minors = append(j.Minors, n)
		}
	}
	slices.Sort(j.Minors)
	j.Minors = slices.Compact(j.Minors)
	j.Share = SomeGPUs
}

// maxMinor bounds the numbers of devices: more have no place in one node.
const maxMinor = 255

// mig takes a list of UUIDs of MIG devices: "MIG-" and a UUID, or before release
// 470 of the driver "MIG-GPU-", the UUID of the GPU, and two numbers.
func (j *Job) mig(list string) {
	for word := range strings.SplitSeq(list, ",") {
		if !migUUID().MatchString(word) {
			j.strange("CUDA_VISIBLE_DEVICES", list)
			return
		}
		j.MIG = append(j.MIG, word)
	}
	j.Shared = true
	j.Share = SomeGPUs
}

var migUUID = checks.Lazily(`^MIG-(GPU-)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/[0-9]{1,3}/[0-9]{1,3})?$`)

// strange notes what cannot be understood: then every GPU may be the job's.
func (j *Job) strange(name, list string) {
	j.Share, j.Minors, j.MIG = AllGPUs, nil, nil
	j.Strange = fmt.Sprintf("%s=%s: want numbers of devices, or UUIDs of MIG devices", name, cut(printable(list), 100))
}

// digits is s if it consists of a few digits, else "".
func digits(s string) string {
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return s
}

// userName is s if it may be the name of a user, else "".
func userName(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'/\:`, r) }) {
		return ""
	}
	return s
}

// GPU is a GPU of the node, by the names that it has.
type GPU struct {
	Index int      `json:"index"` // NVML's, by PCI address
	Minor int      `json:"minor"` // the N of /dev/nvidiaN; -1 if it is not known
	PCI   string   `json:"pci"`
	UUID  string   `json:"uuid,omitempty"`
	MIG   []string `json:"mig,omitempty"` // UUIDs of its MIG devices, where they have been asked for
}

func (g GPU) String() string { return fmt.Sprintf("gpu%d %s", g.Index, g.PCI) }

// Scope is what a job has of a node. The zero value is the whole node.
type Scope struct {
	Known bool  // the job has Own and nothing else; false: it may have any GPU
	Own   []GPU // by minor number
	Other []GPU // GPUs of the node that are not the job's, as far as the driver has them
}

// ScopeOf finds a job's GPUs among those of the node. If one of them is not there
// every GPU may be meant: why says which.
func ScopeOf(j Job, node []GPU) (s Scope, why string) {
	switch j.Share {
	case AllGPUs:
		return Scope{Own: node}, j.Strange
	case NoGPUs:
		return Scope{Known: true, Other: node}, ""
	}
	own := map[int]bool{}
	for _, minor := range j.Minors {
		i := slices.IndexFunc(node, func(g GPU) bool { return g.Minor == minor })
		if i < 0 {
			return Scope{Own: node}, fmt.Sprintf("no GPU of this node has the device /dev/nvidia%d", minor)
		}
		own[i] = true
	}
	for _, uuid := range j.MIG {
		i := slices.IndexFunc(node, func(g GPU) bool { return g.holds(uuid) })
		if i < 0 {
			return Scope{Own: node}, "no GPU of this node has the MIG device " + uuid
		}
		own[i] = true
	}
	s.Known = true
	for i, g := range node {
		if own[i] {
			s.Own = append(s.Own, g)
		} else {
			s.Other = append(s.Other, g)
		}
	}
	return s, ""
}

// holds says whether a MIG device is on the GPU. The older form of its name has
// the UUID of the GPU in it.
func (g GPU) holds(mig string) bool {
	if parent, _, ok := strings.Cut(strings.TrimPrefix(mig, "MIG-"), "/"); ok && parent == g.UUID {
		return true
	}
	return slices.Contains(g.MIG, mig)
}

// Inside says whether a finding concerns the job: it is about one of its GPUs,
// or about the node as a whole. What cannot be told is inside. A GPU that the driver
// has lost is not the job's, whose GPUs it has.
func (s Scope) Inside(d checks.Device) bool {
	if !s.Known || d.Kind != "gpu" {
		return true
	}
	is := func(g GPU) bool { return d.PCI != "" && d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID }
	return !slices.ContainsFunc(s.Other, is) && (d.PCI == "" || slices.ContainsFunc(s.Own, is))
}
