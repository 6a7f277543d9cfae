package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Job is the job of a prolog or an epilog, as slurmd describes it. Values without Slurm's form are
// ignored: some of them are the user's text.
type Job struct {
	ID      string // digits; "" if slurmd did not set it
	SLUID   string // its other name, which 26.05 gives its cgroup; "" if slurmd did not set it
	Het     string // the ID of its heterogeneous job, "" if it is not a component
	Restart int    // number of requeues
	UID     int    // -1 if unknown
	User    string
	Began   time.Time // when slurmctld started it; zero if unknown
	Share   Share
	Numbers []int    // for SomeGPUs: slurmd's numbers of the GPUs, sorted; see Numbering
	UUIDs   []string // UUIDs of the same GPUs, if slurmd says them
	Minors  []int    // for SomeGPUs, from the record of its prolog instead of Numbers: the N of /dev/nvidiaN, sorted
	MIG     []string // for SomeGPUs: UUIDs of MIG devices, instead of Numbers
	Shared  bool     // other jobs can use its GPUs, too: MIG, gres/mps; gres/shard cannot be detected
	Alone   bool     // the job has the whole node
	OneNode bool     // it has no other node; false if that is unknown
	First   string   // the name of its first node, "" if unknown
	Part    bool     // other jobs can be on the node; if neither Alone nor Part is set: unknown
	Strange string   // the text about its GPUs that could not be parsed; Share is then AllGPUs
}

// Share is the part of a node's GPUs that a job has.
type Share int

// The shares.
const (
	NoGPUs   Share = iota // it has no GPU
	SomeGPUs              // the listed GPUs
	AllGPUs               // the whole node, or unknown
)

func (s Share) String() string { return [...]string{"none", "some", "all"}[s] }

// JobFrom reads the job from the environment that slurmd gives prolog and
// epilog (tests/slurm tests it with 22.05, 24.11 and 26.05; MIG is from SchedMD's
// gres_gpu.c):
//
//   - SLURM_JOB_GPUS holds slurmd's numbers of the job's GPUs, also for gres/shard and
//     gres/mps, and those of all GPUs for a job with the whole node, regardless of its
//     request. It is not set for a job without a GPU. A number is the place of the GPU in
//     slurmd's list (gres_common_prep_set_env of Slurm's gres_common.c), not that of its
//     device file;
//   - CUDA_VISIBLE_DEVICES holds the same numbers. With AutoDetect=nvml 26.05 writes UUIDs,
//     and so does every release if MIG divides the GPUs; SLURM_JOB_GPUS then counts the MIG
//     devices;
//   - a task of an array has its own job ID, and nothing identifies it as a task of an
//     array: SLURM_ARRAY_JOB_ID is for slurmctld's prolog and for tasks;
//   - SLURM_JOB_NUM_NODES has the number of nodes of the job, of one component if it is
//     heterogeneous. SLURM_NODELIST lists them, but has those of a step if the prolog runs before a step:
//     without PrologFlags=Alloc. The list is the same on all nodes of the job;
//   - SLURM_JOB_START_TIME is in seconds of slurmctld's clock; 22.05 has none.
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
	if s := env("SLURM_JOB_SLUID"); s != "" && sluid().MatchString(s) {
		j.SLUID = s
	}
	j.OneNode = env("SLURM_JOB_NUM_NODES") == "1" && j.Het == ""
	if j.Het == "" || j.Het == j.ID { // other components do not know the nodes of the first one
		j.First = firstNode(env)
	}
	j.share(env)
	return j
}

// firstNode returns the first node of a job, "" if it is unknown: the list must have all nodes of the job.
func firstNode(env func(string) string) string {
	names, err := ExpandHostlist(env("SLURM_NODELIST"))
	if err != nil || strconv.Itoa(len(names)) != env("SLURM_JOB_NUM_NODES") {
		return ""
	}
	return names[0]
}

func (j *Job) share(env func(string) string) {
	j.Shared = env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != ""
	j.Alone, j.Part = isAlone(env)
	visible := env("CUDA_VISIBLE_DEVICES")
	if strings.Contains(visible, "MIG-") {
		j.parseMIG(visible)
		return
	}
	if uuids := strings.Split(visible, ","); !slices.ContainsFunc(uuids, func(u string) bool { return !gpuUUID().MatchString(u) }) {
		j.UUIDs, visible = uuids, ""
	}
	switch list := env("SLURM_JOB_GPUS"); {
	case list != "" && list != noDevices:
		j.parseNumbers("SLURM_JOB_GPUS", list)
	case len(j.UUIDs) > 0:
		j.Share = SomeGPUs
	case visible != "" && visible != noDevices:
		j.parseNumbers("CUDA_VISIBLE_DEVICES", visible)
	case j.Alone: // on a node with GPUs that are unknown to Slurm
		j.Share = AllGPUs
	}
}

// isAlone reports whether the job has the whole node, and whether it has not. Before 26.05 an
// exclusive job has SLURM_JOB_OVERSUBSCRIBE=NO (22.05 does not set it); since 26.05 every job
// has, and SLURM_JOB_EXCLUSIVE decides: NO, NODE, USER, MCS, TOPO.
func isAlone(env func(string) string) (yes, no bool) {
	if exclusive := env("SLURM_JOB_EXCLUSIVE"); exclusive != "" {
		return exclusive == "NODE", exclusive != "NODE"
	}
	over := env("SLURM_JOB_OVERSUBSCRIBE")
	return over == "NO", over != "" && over != "NO"
}

// Recall sets the GPUs of an ended job from the record of its prolog, if slurmd does not name
// them. slurmd cannot name them if slurmctld was restarted while the job ran, and does not if
// the job's prolog failed (tested with 22.05, 24.11 and 26.05). Without a record, nil, the job
// may have had any GPU.
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

// parseNumbers parses a list of numbers and ranges.
func (j *Job) parseNumbers(name, list string) {
	for word := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(word, "-")
		a, err := strconv.Atoi(digits(low))
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(digits(high))
		}
		if err != nil || b < a || b > maxNumber {
			j.noteStrange(name, list)
			return
		}
		for n := a; n <= b; n++ {
			j.Numbers = append(j.Numbers, n)
		}
	}
	slices.Sort(j.Numbers)
	j.Numbers = slices.Compact(j.Numbers)
	j.Share = SomeGPUs
}

// maxNumber is the maximum number of a GPU: no node has more.
const maxNumber = 255

// parseMIG parses a list of UUIDs of MIG devices: "MIG-" and a UUID, or before driver release 470
// "MIG-GPU-", the UUID of the GPU, and two numbers.
func (j *Job) parseMIG(list string) {
	for word := range strings.SplitSeq(list, ",") {
		if !migUUID().MatchString(word) {
			j.noteStrange("CUDA_VISIBLE_DEVICES", list)
			return
		}
		j.MIG = append(j.MIG, word)
	}
	j.Shared = true
	j.Share = SomeGPUs
}

var migUUID = checks.Lazily(`^MIG-(GPU-)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/[0-9]{1,3}/[0-9]{1,3})?$`)

var sluid = checks.Lazily(`^s[0-9A-Z]{13}$`)

var gpuUUID = checks.Lazily(`^GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// noteStrange records a text that cannot be parsed: then the job may have any GPU.
func (j *Job) noteStrange(name, list string) {
	j.Share, j.Numbers, j.UUIDs, j.MIG = AllGPUs, nil, nil, nil
	j.Strange = fmt.Sprintf("%s=%s: want numbers of devices, or UUIDs of MIG devices", name, cut(printable(list), 100))
}

// digits returns s if it consists of a few digits, else "".
func digits(s string) string {
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return s
}

// userName returns s if it can be the name of a user, else "".
func userName(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'/\:`, r) }) {
		return ""
	}
	return s
}

// GPU is a GPU of the node, with all its names.
type GPU struct {
	Index int      `json:"index"` // NVML index, by PCI address
	Minor int      `json:"minor"` // the N of /dev/nvidiaN; -1 if unknown
	PCI   string   `json:"pci"`
	UUID  string   `json:"uuid,omitempty"`
	MIG   []string `json:"mig,omitempty"` // UUIDs of its MIG devices, if they were queried
}

func (g GPU) String() string { return fmt.Sprintf("gpu%d %s", g.Index, g.PCI) }

// Scope is the part of a node that a job has. The zero value is the whole node.
type Scope struct {
	Known bool  // the job has exactly the GPUs in Own; false: it may have any GPU
	Own   []GPU // by minor number
	Other []GPU // the other GPUs of the node, if the driver shows them
}

// Numbering is what Slurm's configuration says about slurmd's numbers of the GPUs. The zero value
// is an unknown configuration.
type Numbering struct {
	Count  int    // GPUs of the node's Gres; 0 if unknown
	Files  []int  // the N of the /dev/nvidiaN that gres.conf lists, in Slurm's order; nil if it does not list all
	Detect string // AutoDetect, in lower case; "" is off
	Why    string // why the Gres does not count whole GPUs of NVIDIA
}

// orders returns the possible lists of slurmd: device numbers by its numbers. AutoDetect=nvml
// lists the GPUs by PCI address, AutoDetect=nvidia by device file (_merge_system_gres_conf in Slurm's
// gres_gpu.c). slurmd makes its list when it starts: if the driver now shows another number of GPUs
// than Slurm has, one may have been lost before that or after it.
func (n Numbering) orders(node []GPU) (all [][]int) {
	var pci []int
	for _, g := range node {
		if len(n.Files) == 0 || slices.Contains(n.Files, g.Minor) {
			pci = append(pci, g.Minor)
		}
	}
	file := slices.Sorted(slices.Values(pci))
	switch {
	case n.Detect == "" && len(n.Files) > 0:
		return [][]int{n.Files}
	case n.Detect == "nvml":
		all = [][]int{pci}
	case n.Detect == "nvidia":
		all = [][]int{file}
	default:
		all = [][]int{pci, file}
	}
	if n.Count != len(pci) {
		same := make([]int, maxNumber+1)
		for i := range same {
			same[i] = i
		}
		all = append(all, same)
	}
	return all
}

// minors returns the device numbers of slurmd's numbers; why names one that is uncertain.
func (n Numbering) minors(numbers []int, node []GPU) (all []int, why string) {
	if len(numbers) > 0 && n.Why != "" {
		return nil, "slurmd's numbers are not those of GPUs: " + n.Why
	}
	orders := n.orders(node)
	for _, number := range numbers {
		var found []int
		for _, o := range orders {
			if number < len(o) {
				found = append(found, o[number])
			}
		}
		found = slices.Compact(found)
		switch {
		case len(found) == 0 || slices.Contains(found, -1):
			return nil, fmt.Sprintf("no GPU of this node has slurmd's number %d", number)
		case len(found) > 1:
			return nil, fmt.Sprintf("slurmd's number %d is /dev/nvidia%d or /dev/nvidia%d: list the files of the GPUs in gres.conf, File=/dev/nvidia[0-7]", number, found[0], found[1])
		}
		all = append(all, found[0])
	}
	return all, ""
}

// ScopeOf finds a job's GPUs among those of the node, which are in the order of their PCI addresses.
// If one of them is missing or uncertain, the job may have any GPU; why says so.
func ScopeOf(j Job, numbering Numbering, node []GPU) (s Scope, why string) {
	switch j.Share {
	case AllGPUs:
		return Scope{Own: node}, j.Strange
	case NoGPUs:
		return Scope{Known: true, Other: node}, ""
	}
	own := map[int]bool{}
	for _, uuid := range j.UUIDs { // the driver knows no UUID before the first use of a GPU
		if i := slices.IndexFunc(node, func(g GPU) bool { return g.UUID == uuid }); i >= 0 {
			own[i] = true
		}
	}
	minors := j.Minors
	if len(j.UUIDs) == 0 || len(own) < len(j.UUIDs) {
		numbered, why := numbering.minors(j.Numbers, node)
		if why != "" {
			return Scope{Own: node}, why
		}
		if len(j.Numbers) == 0 && len(j.UUIDs) > 0 {
			return Scope{Own: node}, "no GPU of this node has one of the UUIDs " + strings.Join(j.UUIDs, ", ")
		}
		minors, own = append(numbered, minors...), map[int]bool{}
	}
	for _, minor := range minors {
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

// holds reports whether a MIG device is on the GPU. The older form of its name contains the UUID of
// the GPU.
func (g GPU) holds(mig string) bool {
	if parent, _, ok := strings.Cut(strings.TrimPrefix(mig, "MIG-"), "/"); ok && parent == g.UUID {
		return true
	}
	return slices.Contains(g.MIG, mig)
}

// Inside reports whether a finding concerns the job: it is about one of its GPUs, or about the node
// as a whole, or its device is unknown. A GPU that the driver has lost does not belong to the job if
// the driver shows all the job's GPUs.
func (s Scope) Inside(d checks.Device) bool {
	if !s.Known || d.Kind != "gpu" {
		return true
	}
	is := func(g GPU) bool { return d.PCI != "" && d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID }
	return !slices.ContainsFunc(s.Other, is) && (d.PCI == "" || slices.ContainsFunc(s.Own, is))
}
