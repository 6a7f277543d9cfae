package inventory

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Service is a process of the node itself, not of a person or a job.
type Service struct {
	Args string `json:"args"` // command line, the first serviceArgs bytes
	User string `json:"user"` // owner, "" if the uid has no account
	UID  uint32 `json:"uid"`
	Unit string `json:"unit,omitempty"` // systemd's name without ".service"; "" if systemd does not run it
}

const (
	serviceArgs = 512  // bytes
	maxServices = 2000 // different ones; a node has fewer than a hundred
)

// readServices lists the processes of services, each once. systemd puts every service, login
// session, container and Slurm job into its own control group, which distinguishes them. Without
// systemd it lists all processes except the kernel's.
func readServices(h *probe.Host) ([]Service, error) {
	procs, err := probe.Processes(h)
	if err != nil {
		return nil, err
	}
	var list []Service
	seen := map[Service]bool{}
	for _, p := range procs {
		if strings.HasPrefix(p.Args, "[") { // a thread of the kernel, or a zombie
			continue
		}
		unit, own := unitOf(h, p.PID)
		if !own {
			continue
		}
		s := Service{Args: p.Args[:min(len(p.Args), serviceArgs)], UID: p.UID, Unit: unit}
		if seen[s] || len(list) == maxServices {
			continue
		}
		seen[s] = true
		s.User = probe.UserName(h, p.UID)
		list = append(list, s)
	}
	return list, nil
}

// UnitOf returns the systemd service of a process, "" if it has none.
func UnitOf(h *probe.Host, pid int) string {
	unit, _ := unitOf(h, pid)
	return unit
}

// unitOf finds the service of a process. own is false for the processes of persons, containers and
// jobs.
func unitOf(h *probe.Host, pid int) (unit string, own bool) {
	buf := make([]byte, 4<<10)
	n, err := probe.ReadAt(unix.AT_FDCWD, h.Path("/proc/"+strconv.Itoa(pid)+"/cgroup"), buf)
	if err != nil {
		return "", true // a kernel without control groups
	}
	return parseCgroup(buf[:n])
}

// parseCgroup parses /proc/PID/cgroup: lines "number:controllers:path". systemd's own have no
// controllers or "name=systemd" (cgroups(7)).
func parseCgroup(data []byte) (unit string, own bool) {
	path := "/"
	for line := range bytes.Lines(data) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) == 3 && (f[1] == "" || f[1] == "name=systemd") && f[2] != "/" && f[2] != "" {
			path = f[2]
		}
	}
	if path == "/" {
		return "", true
	}
	words := strings.Split(strings.Trim(path, "/"), "/")
	if words[0] != "system.slice" {
		return "", false
	}
	for i, w := range words {
		name, ok := strings.CutSuffix(w, ".service")
		if !ok {
			continue
		}
		inner := words[i+1:]
		guest := slices.ContainsFunc(inner, func(w string) bool {
			return strings.HasSuffix(w, ".scope") || strings.HasPrefix(w, "job_") || strings.HasPrefix(w, "kubepods") ||
				strings.HasPrefix(w, "docker") || strings.HasPrefix(w, "libpod") || strings.HasPrefix(w, "lxc")
		})
		return name, !guest
	}
	return "", false
}
