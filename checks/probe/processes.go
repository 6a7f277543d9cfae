package probe

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is one process as "ps axo uid,pid,args" prints it.
type Process struct {
	PID  int
	UID  uint32 // effective uid: second number of "Uid:" in /proc/PID/status
	Args string // command line, runs of blanks collapsed; [name] of a kernel thread
}

// Command is the first word of the command line.
func (p Process) Command() string {
	word, _, _ := strings.Cut(p.Args, " ")
	return word
}

// Processes lists the processes of /proc by pid. One that ends meanwhile, or
// that this user may not look at, is left out.
func (h *Host) Processes() ([]Process, error) {
	return once(h, "processes", func() ([]Process, error) {
		dir, err := os.Open(h.Path("/proc"))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: reason(err)}
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: reason(err)}
		}
		pids := make([]int, 0, len(names))
		for _, n := range names {
			if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		slices.Sort(pids)
		r := processReader{dir: int(dir.Fd())}
		procs := make([]Process, 0, len(pids))
		for _, pid := range pids {
			if p, err := r.read(pid); err == nil {
				procs = append(procs, p)
			}
		}
		return procs, nil
	})
}

// maxArgs is how much of a command line is looked at, in bytes. ps cuts
// them much earlier; Java class paths are longer than that.
const maxArgs = 64 << 10

// processReader reads processes below an open /proc into buffers it uses
// again: a node may have thousands.
type processReader struct {
	dir    int // descriptor of /proc
	name   []byte
	status [4 << 10]byte
	args   [maxArgs]byte
}

func (r *processReader) read(pid int) (Process, error) {
	r.name = strconv.AppendInt(r.name[:0], int64(pid), 10)
	digits := len(r.name)
	n, err := readAt(r.dir, string(append(r.name, "/status"...)), r.status[:])
	if err != nil {
		return Process{}, err
	}
	s, ok := parseStatus(r.status[:n])
	if !ok {
		return Process{}, errBadStatus
	}
	p := Process{PID: pid, UID: s.uid}
	if s.memory {
		// An error here is a process that has just ended.
		if n, err = readAt(r.dir, string(append(r.name[:digits], "/cmdline"...)), r.args[:]); err == nil {
			p.Args = commandLine(r.args[:n])
		}
	}
	if p.Args == "" {
		p.Args = "[" + s.name + "]"
		if s.dead {
			p.Args += " <defunct>"
		}
	}
	return p, nil
}

var errBadStatus = &fs.PathError{Op: "parse", Path: "status", Err: fs.ErrInvalid}

// status is what is needed of /proc/PID/status.
type status struct {
	name   string // command name, cut at 15 bytes by the kernel
	uid    uint32 // effective
	dead   bool   // zombie, or about to be gone
	memory bool   // has an address space: neither kernel thread nor zombie
}

// parseStatus reads /proc/PID/status. The kernel writes the name first and
// escapes newlines in it, so that no name can pass for another line.
func parseStatus(data []byte) (status, bool) {
	var s status
	rest, ok := bytes.CutPrefix(data, []byte("Name:\t"))
	if !ok {
		return s, false
	}
	name, rest, _ := bytes.Cut(rest, []byte("\n"))
	s.name = printable(unescapeName(name))
	owner := false
	for line := range bytes.Lines(rest) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch string(key) {
		case "State":
			v := bytes.TrimSpace(value)
			s.dead = len(v) > 0 && (v[0] == 'Z' || v[0] == 'X')
		case "Uid":
			s.uid, owner = effective(value)
		case "VmSize":
			s.memory = true
			return s, owner
		}
	}
	return s, owner
}

// effective is the second of the numbers real, effective, saved and file system uid.
func effective(value []byte) (uint32, bool) {
	value = bytes.TrimLeft(value, "\t ")
	_, value, ok := bytes.Cut(value, []byte("\t"))
	if !ok {
		return 0, false
	}
	field, _, _ := bytes.Cut(value, []byte("\t"))
	n, err := strconv.ParseUint(string(field), 10, 32)
	return uint32(n), err == nil
}

// unescapeName undoes the two escapes of the kernel's name line, in place.
func unescapeName(name []byte) []byte {
	out := name[:0]
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '\\' && i+1 < len(name) {
			switch name[i+1] {
			case 'n':
				c = '\n'
				i++
			case '\\':
				i++
			}
		}
		out = append(out, c)
	}
	return out
}

// commandLine turns /proc/PID/cmdline into the words that ps shows.
func commandLine(data []byte) string {
	for i, c := range data {
		if c == 0 {
			data[i] = ' '
		}
	}
	return printable(data)
}

// printable is what is left of a text after ps has printed it and a shell has
// split it into words: newlines are blanks, other control characters "?", and
// runs of blanks one blank.
func printable(data []byte) string {
	out := data[:0]
	for _, c := range data {
		switch {
		case c == '\n' || c == ' ':
			if len(out) > 0 && out[len(out)-1] != ' ' {
				out = append(out, ' ')
			}
		case c < ' ' || c == 0x7f:
			out = append(out, '?')
		default:
			out = append(out, c)
		}
	}
	return strings.TrimSuffix(string(out), " ")
}

// Alive says whether a process still exists and is no zombie.
func (h *Host) Alive(pid int) bool {
	var buf [4 << 10]byte
	n, err := readAt(unix.AT_FDCWD, h.Path("/proc/"+strconv.Itoa(pid)+"/status"), buf[:])
	if err != nil {
		return false
	}
	s, ok := parseStatus(buf[:n])
	return ok && !s.dead
}

// Kill sends SIGKILL to a process of [Host.Processes], unless its pid has gone
// to another program or owner meanwhile. Below another root there is nothing to
// kill.
func (h *Host) Kill(p Process) error {
	if h.root != "/" {
		return os.ErrProcessDone
	}
	dir, err := open(unix.AT_FDCWD, "/proc")
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	r := processReader{dir: dir}
	if now, err := r.read(p.PID); err != nil || now.UID != p.UID || now.Command() != p.Command() {
		return os.ErrProcessDone
	}
	return unix.Kill(p.PID, unix.SIGKILL)
}
