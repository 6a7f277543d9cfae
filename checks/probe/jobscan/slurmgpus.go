package jobscan

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// SlurmGPUs has a node's GPUs in Slurm's configuration, and the time limits of prolog and epilog.
type SlurmGPUs struct {
	Count  int    `json:"count,omitempty"`  // GPUs in the Gres of the node; 0: none or unknown
	Pos    string `json:"pos,omitempty"`    // the line of the node: /etc/slurm/slurm.conf:12; "" if Slurm has no such node
	NVIDIA bool   `json:"nvidia,omitempty"` // gres.conf says that they are NVIDIA's
	Why    string `json:"why,omitempty"`    // why Count is 0 although the node has a Gres of gpu
	Files  []int  `json:"files,omitempty"`  // the N of the /dev/nvidiaN that gres.conf lists, in Slurm's order; nil if it does not list all
	Detect string `json:"detect,omitempty"` // AutoDetect of the node, in lower case; "" is off

	Prolog time.Duration `json:"prolog,omitempty"` // PrologTimeout or PrologEpilogTimeout; 0: no limit
	Epilog time.Duration `json:"epilog,omitempty"`

	Parts bool `json:"parts,omitempty"` // GresTypes has shard or mps: several jobs may share one GPU
}

// ReadGPUs reads slurm.conf (named if it is set, from SLURM_CONF) and the gres.conf in the same
// directory. It reads files as [probe.ReadTrusted] does. The error is [fs.ErrNotExist] if there is
// no slurm.conf. It may block if they lie on a dead file server.
func ReadGPUs(h *probe.Host, named, node string) (SlurmGPUs, error) {
	file, data, err := findSlurmConf(h, named)
	if err != nil {
		return SlurmGPUs{}, err
	}
	var g SlurmGPUs
	var limits slurmLimits
	usual, gres := "", "" // Gres of NodeName=DEFAULT, and of the node
	s := &slurmFiles{host: h, dir: path.Dir(file), left: maxSlurmFiles, visit: func(pos string, line []slurmPair) {
		if line[0].key != "nodename" {
			limits.read(line)
			if types, has := findValue(line, "grestypes"); has {
				for name := range strings.SplitSeq(strings.ToLower(types), ",") {
					name = strings.TrimSpace(name)
					g.Parts = g.Parts || name == "shard" || name == "mps"
				}
			}
			return
		}
		own, has := findValue(line, "gres")
		switch {
		case strings.EqualFold(line[0].value, "DEFAULT"):
			if has {
				usual = own
			}
		case hasHost(line[0].value, node):
			g.Pos, gres = pos, usual
			if has {
				gres = own
			}
		}
	}}
	if err := s.parse(file, data); err != nil {
		return SlurmGPUs{}, err
	}
	g.Prolog, g.Epilog = limits.prolog, limits.epilog
	if g.Count, g.Why = countGPUs(gres); g.Count > 0 {
		s.readGres(path.Join(s.dir, "gres.conf"), node, gres, &g)
	}
	return g, nil
}

// slurmLimits has the time limits of prolog and epilog.
type slurmLimits struct {
	prolog, epilog       time.Duration
	ownProlog, ownEpilog bool // set by a timeout for only one of them
}

// read stores the timeouts of a line. Those of 25.05 for one of the two take precedence over the
// common one, in whatever order they are.
func (l *slurmLimits) read(line []slurmPair) {
	for _, p := range line {
		seconds, err := strconv.ParseUint(p.value, 10, 16) // INFINITE means no limit
		limit := time.Duration(seconds) * time.Second
		if err != nil || seconds >= 65534 { // scontrol prints that for no limit
			limit = 0
		}
		switch p.key {
		case "prologepilogtimeout":
			if !l.ownProlog {
				l.prolog = limit
			}
			if !l.ownEpilog {
				l.epilog = limit
			}
		case "prologtimeout":
			l.prolog, l.ownProlog = limit, true
		case "epilogtimeout":
			l.epilog, l.ownEpilog = limit, true
		}
	}
}

func findValue(line []slurmPair, key string) (value string, ok bool) {
	for _, p := range line {
		if p.key == key {
			value, ok = p.value, true
		}
	}
	return value, ok
}

var (
	gresDetail = probe.Lazily(`\([^)]*\)`)             // gpu:8(S:0-1)
	migType    = probe.Lazily(`(?i)\d+g\.\d+gb`)       // a100_1g.5gb
	gresNumber = probe.Lazily(`^(\d{1,9})([kKmMgG]?)`) // 8, 1K
)

// mostGPUs is the largest number that a node has.
const mostGPUs = 16

// countGPUs adds up the GPUs of a Gres: gpu:h100:4,gpu:a100:4,shard:64.
func countGPUs(gres string) (count int, why string) {
	for item := range strings.SplitSeq(gresDetail().ReplaceAllString(gres, ""), ",") {
		words := strings.Split(strings.TrimSpace(item), ":")
		if !strings.EqualFold(words[0], "gpu") {
			continue
		}
		if migType().MatchString(item) {
			return 0, "it counts MIG instances"
		}
		count += parseGresCount(words[1:])
	}
	if count > mostGPUs {
		return 0, "it counts something else than whole GPUs"
	}
	return count, ""
}

// parseGresCount returns the number behind type and no_consume, 1 if there is none.
func parseGresCount(words []string) int {
	if len(words) == 0 {
		return 1
	}
	last := words[len(words)-1]
	m := gresNumber().FindStringSubmatch(last)
	if m == nil || m[0] != last {
		return 1
	}
	n, _ := strconv.Atoi(m[1]) // at most nine digits
	return n << map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[strings.ToUpper(m[2])]
}

// readGres reads from gres.conf the vendor of the GPUs, whether they are whole, and their order.
// Without a readable file all of that is unknown.
func (s *slurmFiles) readGres(file, node, gres string, g *SlurmGPUs) {
	told := *g
	var devices [2]fileOrder // of lines for all nodes, and of lines for this node, which Slurm appends
	detect := [2]string{}
	s.visit = func(_ string, line []slurmPair) {
		own := 0
		if nodes, ok := findValue(line, "nodename"); ok {
			if own = 1; !hasHost(nodes, node) {
				return
			}
		}
		if name, ok := findValue(line, "name"); ok && !strings.EqualFold(name, "gpu") {
			return
		}
		told.learn(line)
		devices[own].add(line)
		if value, ok := findValue(line, "autodetect"); ok {
			detect[own] = strings.ToLower(value)
		}
	}
	if err := s.read(file); err == nil || errors.Is(err, fs.ErrNotExist) {
		*g = told
		if g.Detect = cmp.Or(detect[1], detect[0]); g.Detect == "off" {
			g.Detect = ""
		}
		g.Files = append(devices[0], devices[1]...).minors(gres, g.Count)
	}
}

// fileOrder has the lines of gres.conf with GPUs, in their order.
type fileOrder []gresFiles

// gresFiles has the /dev/nvidiaN of a line of gres.conf.
type gresFiles struct {
	kind   string // Type, in lower case
	minors []int  // nil if the line names other files, or none
}

func (o *fileOrder) add(line []slurmPair) {
	_, several := findValue(line, "multiplefiles")
	files, is := findValue(line, "file")
	if !is && !several {
		return
	}
	kind, _ := findValue(line, "type")
	f := gresFiles{kind: strings.ToLower(kind)}
	for name := range expandHostlist(files) {
		n, err := strconv.ParseUint(strings.TrimPrefix(name, "/dev/nvidia"), 10, 8)
		if err != nil || several || len(f.minors) == mostGPUs {
			f.minors = nil
			break
		}
		f.minors = append(f.minors, int(n))
	}
	*o = append(*o, f)
}

// minors returns the device numbers in the order in which slurmd numbers the GPUs: by the types of
// the node's Gres, if it has some, then by the lines of gres.conf (_merge_config in Slurm's gres.c).
// It is nil if gres.conf does not name as many whole GPUs as the node has.
func (o fileOrder) minors(gres string, count int) (all []int) {
	kinds := gresTypes(gres)
	for _, kind := range kinds {
		for _, f := range o {
			switch {
			case f.minors == nil:
				return nil
			case kind == "" && len(kinds) == 1, kind != "" && f.kind == kind:
				all = append(all, f.minors...)
			}
		}
	}
	if len(all) != count {
		return nil
	}
	return all
}

// gresTypes returns the types of GPUs in a Gres, in its order; "" is that of gpu:8.
func gresTypes(gres string) (kinds []string) {
	for item := range strings.SplitSeq(strings.ToLower(gresDetail().ReplaceAllString(gres, "")), ",") {
		switch words := strings.Split(strings.TrimSpace(item), ":"); {
		case words[0] != "gpu":
		case len(words) > 2, len(words) == 2 && gresNumber().FindString(words[1]) != words[1]:
			kinds = append(kinds, words[1])
		default:
			kinds = append(kinds, "")
		}
	}
	return kinds
}

func (g *SlurmGPUs) learn(line []slurmPair) {
	devices, _ := findValue(line, "file")
	several, _ := findValue(line, "multiplefiles")
	detect, _ := findValue(line, "autodetect")
	flags, _ := findValue(line, "flags")
	kind, _ := findValue(line, "type")
	devices, detect, flags = devices+several, strings.ToLower(detect), strings.ToLower(flags)
	switch {
	case strings.Contains(devices, "nvidia-caps") || migType().MatchString(kind):
		g.Count, g.Why = 0, "it counts MIG instances"
	case strings.HasPrefix(devices, "/dev/nvidia"), strings.Contains(flags, "nvidia_gpu_env"), detect == "nvml", detect == "nvidia":
		g.NVIDIA = true
	case strings.HasPrefix(devices, "/dev/dri"), strings.Contains(flags, "_gpu_env"), detect == "rsmi", detect == "oneapi", detect == "nrt":
		g.Count, g.Why = 0, "its GPUs are not NVIDIA's"
	}
}
