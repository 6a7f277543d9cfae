// Package evidence collects what explains a fault after the node has been repaired: the kernel's log,
// devices, counters, processes and versions. It writes all of it as one archive.
package evidence

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Limits, bytes. An archive never has more than MaxArchive, because its content before compression has
// at most that; the directory never has more than MaxAll, and never more than maxJobs archives of failed jobs, nor
// of running ones. A user can cause these at will: they are removed before those about other faults.
const (
	MaxArchive = 5 << 20
	MaxAll     = 50 << 20
	maxLog     = 2 << 20
	maxFile    = 512 << 10
	maxJobs    = 20
)

// FailedJob begins the code of an archive about a failed job.
const FailedJob = "job.failed."

// Name returns the name of an archive. Names sort by time.
func Name(at time.Time, code string) string {
	return at.UTC().Format("20060102T150405Z") + "-" + code + ".tar.gz"
}

// File is one file of an archive.
type File struct {
	Name string
	Data []byte
}

// values are files with one value each, by the archive's file that lists them as "PATH: VALUE". A star
// stands for each name in a directory.
var values = []struct {
	name  string
	dirs  string
	files []string
}{
	{"pci.txt", "/sys/bus/pci/devices/*", []string{
		"class", "vendor", "device", "subsystem_vendor", "subsystem_device", "numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
		"aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable", "power_state",
	}},
	{"infiniband.txt", "/sys/class/infiniband/*", []string{"fw_ver", "board_id", "hca_type", "node_guid"}},
	{"infiniband.txt", "/sys/class/infiniband/*/ports/*", []string{"state", "phys_state", "rate", "link_layer", "lid", "sm_lid"}},
	{"infiniband.txt", "/sys/class/infiniband/*/ports/*/counters", nil},
	{"infiniband.txt", "/sys/class/infiniband/*/ports/*/hw_counters", nil},
	{"network.txt", "/sys/class/net/*", []string{"operstate", "carrier", "speed", "duplex", "mtu", "carrier_changes", "address"}},
	{"network.txt", "/sys/class/net/*/statistics", nil},
	{"nvme.txt", "/sys/class/nvme/*", []string{"state", "model", "serial", "firmware_rev", "transport", "address"}},
	{"memory-errors.txt", "/sys/devices/system/edac/mc/*", []string{"ce_count", "ue_count", "mc_name"}},
	{"memory-errors.txt", "/sys/devices/system/edac/mc/*/*", []string{"dimm_label", "dimm_location", "dimm_ce_count", "dimm_ue_count"}},
	{"system.txt", "/sys/class/dmi/id", []string{"sys_vendor", "product_name", "product_version", "product_serial", "board_name", "bios_version", "bios_date"}},
}

// texts are whole files.
var texts = []struct{ name, path string }{
	{"system.txt", "/proc/version"}, {"system.txt", "/etc/os-release"}, {"system.txt", "/proc/cmdline"}, {"system.txt", "/proc/uptime"}, {"system.txt", "/proc/loadavg"},
	{"system.txt", "/proc/meminfo"}, {"system.txt", "/proc/modules"}, {"mounts.txt", "/proc/mounts"},
	{"nvidia.txt", probe.NvProc + "/version"}, {"nvidia.txt", probe.NvProc + "/params"}, {"nvidia.txt", probe.NvProc + "/gpus/*/information"},
	{"nvidia.txt", probe.NvProc + "/gpus/*/power"},
}

const processFile = "processes.txt"

// partLimit bounds the collection of one file. A hung process can block the reader of its command line,
// and a hung driver the reader of its files; a healthy driver can take seconds.
const partLimit = 6 * time.Second

// Collect reads everything that can be read in time. errors.txt has the errors of the rest.
func Collect(h *probe.Host) []File { return collect(h, partLimit) }

func collect(h *probe.Host, limit time.Duration) []File {
	parts := map[string]func(*collector){processFile: (*collector).processes, "memory.txt": (*collector).memory, "kernel.log": (*collector).kernelLog}
	for _, v := range values {
		parts[v.name] = func(c *collector) { c.devices(v.name) }
	}
	for _, t := range texts {
		parts[t.name] = func(c *collector) { c.devices(t.name) }
	}
	var parallel sync.WaitGroup
	names := slices.Sorted(maps.Keys(parts))
	read := make([]*collector, len(names))
	for i, name := range names {
		parallel.Go(func() {
			read[i] = &collector{h: h, files: map[string]*bytes.Buffer{}}
			if !h.InTime("collect "+name, limit, func() { parts[name](read[i]) }) {
				read[i].add("errors.txt", "%s: no answer within %s: the rest is missing\n", name, limit)
			}
		})
	}
	parallel.Wait()
	all := collector{files: map[string]*bytes.Buffer{}}
	for _, c := range read {
		for _, f := range c.list() {
			all.add(f.Name, "%s", f.Data)
		}
	}
	return all.list()
}

// devices reads the values and texts of a file of the archive.
func (c *collector) devices(name string) {
	for _, v := range values {
		if v.name != name {
			continue
		}
		for _, dir := range c.expand(v.dirs) {
			files := v.files
			if files == nil {
				files, _ = c.h.Names(dir)
			}
			for _, file := range files {
				p := path.Join(dir, file)
				if value, err := c.h.ReadValue(p); err == nil {
					c.add(name, "%s: %s\n", p, strings.ReplaceAll(value, "\n", " "))
				} else {
					c.failed(err)
				}
			}
		}
	}
	for _, t := range texts {
		if t.name != name {
			continue
		}
		for _, p := range c.expand(t.path) {
			data, err := c.h.ReadFile(p)
			c.failed(err)
			if err == nil {
				c.add(name, "== %s\n%s\n", p, data)
			}
		}
	}
}

type collector struct {
	h     *probe.Host
	mu    sync.Mutex // of files: a part that does not end goes on
	files map[string]*bytes.Buffer
}

// add appends to a file until it is full.
func (c *collector) add(name, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.files[name]
	if b == nil {
		b = new(bytes.Buffer)
		c.files[name] = b
	}
	if b.Len() < maxFile {
		fmt.Fprintf(b, format, args...)
	}
}

// failed records an error, unless the file does not exist or has no value: the speed of an interface
// that is down.
func (c *collector) failed(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTDIR) {
		c.add("errors.txt", "%v\n", err)
	}
}

// expand returns the paths that a pattern with stars for whole names fits.
func (c *collector) expand(pattern string) []string {
	before, behind, found := strings.Cut(pattern, "/*")
	if !found {
		return []string{pattern}
	}
	names, err := c.h.Names(before)
	c.failed(err)
	var list []string
	for _, name := range names {
		list = append(list, c.expand(before+"/"+name+behind)...)
	}
	return list
}

// processes lists the processes by name, and then by command line, which a process that hangs can block.
func (c *collector) processes() {
	names, err := c.h.Names("/proc")
	c.failed(err)
	states := map[string]string{}
	for _, pid := range names {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		stat, _ := c.h.ReadFile("/proc/" + pid + "/stat")
		open, end := bytes.IndexByte(stat, '('), bytes.LastIndex(stat, []byte(") "))
		if open < 0 || end < open || end+2 >= len(stat) { // it has ended
			continue
		}
		state, where := string(stat[end+2]), ""
		if state == "D" {
			where, _ = c.h.ReadValue("/proc/" + pid + "/wchan")
		}
		states[pid] = state + " " + cmp.Or(where, "-")
		c.add(processFile, "%s - %s %s\n", pid, states[pid], stat[open+1:end])
	}
	list, err := probe.Processes(c.h)
	if c.failed(err); err != nil {
		return
	}
	c.set(processFile, new(bytes.Buffer))
	for _, p := range list {
		c.add(processFile, "%d %d %s %s\n", p.PID, p.UID, cmp.Or(states[strconv.Itoa(p.PID)], "? -"), p.Args)
	}
}

// memory adds what the checks remember: the counters of earlier runs.
func (c *collector) memory() {
	names, err := c.h.Names(c.h.Past())
	if c.h.Past() == "" {
		return
	}
	c.failed(err)
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") || strings.HasPrefix(name, "job-") || strings.HasPrefix(name, "run-") {
			continue
		}
		p := path.Join(c.h.Past(), name)
		data, err := c.h.ReadFile(p)
		c.failed(err)
		if err == nil && len(data) < maxFile {
			c.add("memory.txt", "== %s\n%s\n", p, data)
		}
	}
}

// kernelLog adds the end of the kernel's log.
func (c *collector) kernelLog() {
	var log bytes.Buffer
	_, err := probe.KernelLog(c.h, 0, func(r probe.KernelRecord) {
		fmt.Fprintf(&log, "<%d>[%12.6f] %s\n", r.Level, r.At.Seconds(), r.Text)
		if log.Len() > 2*maxLog {
			log.Next(log.Len() - maxLog)
		}
	})
	c.failed(err)
	if log.Len() > maxLog {
		log.Next(log.Len() - maxLog)
	}
	c.set("kernel.log", &log)
}

func (c *collector) set(name string, b *bytes.Buffer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[name] = b
}

func (c *collector) list() (files []File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, b := range c.files {
		files = append(files, File{name, bytes.Clone(b.Bytes())})
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files
}

// identities are the patterns of what identifies a board, a node or a user.
var identities = []struct {
	find func() *regexp.Regexp
	with string
}{
	{probe.Lazily(`\b(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`), "$1-redacted"},
	{probe.Lazily(`\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`), "redacted"},
	{probe.Lazily(`\b[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{0,4}){2,6}:[0-9a-fA-F]{1,4}(/\d+)?\b`), "redacted"},
	{probe.Lazily(`\b([0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}\b`), "redacted"},
	{probe.Lazily(`\b([0-9a-fA-F]{2}-){5,19}[0-9a-fA-F]{2}\b`), "redacted"}, // BOOTIF of the kernel's command line
	{probe.Lazily(`"(by|host|who|why)":\s*"(?:[^"\\]|\\.)*"`), `"$1":"redacted"`},
	{probe.Lazily(`\b[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){3}\b`), "redacted"},
	{probe.Lazily(`\b\d{1,3}(\.\d{1,3}){3}\b`), "redacted"},
	{probe.Lazily(`(?i)(serial(?:[ _]number)?"?[:= ]+"?)[^\s",]+`), "${1}redacted"},
}

// cmdline finds the kernel's command line.
var cmdline = probe.Lazily(`(?m)^== /proc/cmdline\n.*$`)

// redactCmdline removes the values that name a file, a server or an address.
func redactCmdline(text string) string {
	head, line, _ := strings.Cut(text, "\n")
	words := strings.Fields(line)
	for i, word := range words {
		name, value, isSet := strings.Cut(word, "=")
		switch {
		case isSet && strings.ContainsAny(value, "/:.@"):
			words[i] = name + "=redacted"
		case !isSet && strings.ContainsAny(word, "/:@"):
			words[i] = "redacted"
		}
	}
	return head + "\n" + strings.Join(words, " ")
}

// Redact removes what identifies boards, the node, its network and its users. Of processes it keeps the
// PID, the state, and the name of kernel threads. isCode reports the codes of findings, which stay: they can begin with
// the name of the node.
func Redact(files []File, host string, isCode func(string) bool) []File {
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(host) + `\b(\.[\w-]+)*`)
	begins := isCode(host) // else no word needs the question, which takes long
	rename := func(word string) string {
		if begins && word != host && isCode(word) {
			return word
		}
		return "node"
	}
	var kept []File
	for _, f := range files {
		text := string(f.Data)
		if f.Name == "mounts.txt" { // names of users and servers
			continue
		}
		if f.Name == processFile {
			var b strings.Builder
			for line := range strings.Lines(text) {
				words := strings.SplitN(strings.TrimSpace(line), " ", 5)
				if len(words) == 5 && (words[1] != "0" || !strings.HasPrefix(words[4], "[")) {
					words[1], words[4] = "-", "-"
				}
				b.WriteString(strings.Join(words, " ") + "\n")
			}
			text = b.String()
		}
		if f.Name == "system.txt" {
			text = cmdline().ReplaceAllStringFunc(text, redactCmdline)
		}
		for _, id := range identities {
			text = id.find().ReplaceAllString(text, id.with)
		}
		if host != "" {
			text = name.ReplaceAllStringFunc(text, rename)
		}
		kept = append(kept, File{f.Name, []byte(text)})
	}
	return kept
}

// Archive returns the files as a compressed tar archive.
func Archive(files []File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	left := MaxArchive
	for _, f := range files {
		data := f.Data[:min(len(f.Data), left)]
		left -= len(data)
		head := &tar.Header{Name: f.Name, Mode: 0o600, Size: int64(len(data)), ModTime: at, Format: tar.FormatPAX}
		if err := w.WriteHeader(head); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.Name, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.Name, err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return nil, fmt.Errorf("archive the evidence: %w", err)
	}
	return out.Bytes(), nil
}

// Dir is the directory of the evidence in the memory directory of a node.
const Dir = "evidence"

// Keep writes an archive into the memory directory, readable by root only, and removes the oldest ones
// until all fit into MaxAll.
func Keep(h *probe.Host, name string, data []byte) error {
	if h.Past() == "" {
		return probe.ErrNoMemory
	}
	dir := filepath.Join(h.Past(), Dir)
	if err := os.MkdirAll(h.Path(dir), 0o700); err != nil {
		return &fs.PathError{Op: "make", Path: dir, Err: probe.Reason(err)}
	}
	if kind := jobKind(name); kind != "" {
		dropJobs(h, dir, kind, maxJobs-1)
	}
	makeRoom(h, dir, MaxAll-int64(len(data)))
	target := filepath.Join(dir, name)
	f, err := os.OpenFile(h.Path(target+".part"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.Write(data)
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err == nil {
			err = os.Rename(f.Name(), h.Path(target))
		}
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: target, Err: probe.Reason(err)}
	}
	return nil
}

// runningJob finds the codes of check_job_health that a user can cause.
var runningJob = probe.Lazily(`-job\.(hang|memory\.left|port|stall|straggler|throttle)\.`)

// jobKind returns the kind of an archive about a job, "" for another one.
func jobKind(name string) string {
	switch {
	case strings.Contains(name, "-"+FailedJob):
		return "failed"
	case runningJob().MatchString(name):
		return "running"
	}
	return ""
}

// dropJobs removes the oldest archives of a kind until there are at most that many.
func dropJobs(h *probe.Host, dir, kind string, most int) {
	entries, _ := os.ReadDir(h.Path(dir)) // by name
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return jobKind(e.Name()) != kind })
	for _, e := range entries[:max(0, len(entries)-most)] {
		_ = os.Remove(filepath.Join(h.Path(dir), e.Name()))
	}
}

// makeRoom removes files until the others have at most that many bytes: the oldest about jobs, and then the oldest
// of the others. The names begin with the time.
func makeRoom(h *probe.Host, dir string, most int64) {
	entries, _ := os.ReadDir(h.Path(dir)) // by name
	ofJob := func(e os.DirEntry) bool { return jobKind(e.Name()) != "" }
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int {
		switch {
		case ofJob(a) == ofJob(b):
			return 0
		case ofJob(a):
			return -1
		}
		return 1
	})
	var all int64
	size := func(e os.DirEntry) int64 {
		info, err := e.Info()
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for _, e := range entries {
		all += size(e)
	}
	for _, e := range entries {
		if all <= most {
			return
		}
		all -= size(e)
		_ = os.Remove(filepath.Join(h.Path(dir), e.Name()))
	}
}
