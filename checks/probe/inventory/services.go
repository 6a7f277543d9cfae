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

	// OnDemand is set if systemd starts the service at the first connection to its socket, if mount.nfs or a
	// prolog starts it, or if the unused service ends itself: after a boot it has no process.
	OnDemand bool `json:"on_demand,omitempty"`
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
	seen, enabled := map[Service]bool{}, enabledUnits(h)
	for _, p := range procs {
		if strings.HasPrefix(p.Args, "[") || p.Unread { // a thread of the kernel, or a zombie
			continue
		}
		unit, own := unitOf(h, p.PID)
		if !own || contained(h, p.PID) {
			continue
		}
		s := Service{Args: p.Args[:min(len(p.Args), serviceArgs)], UID: p.UID, Unit: unit}
		if seen[s] || len(list) == maxServices {
			continue
		}
		seen[s] = true
		s.User = probe.UserName(h, p.UID)
		base, _, _ := strings.Cut(unit, "@") // sshd.socket starts an instance for each connection
		s.OnDemand = !enabled[unit+".service"] && (enabled[base+".socket"] || slices.Contains(neededUnits, unit)) ||
			enabled[unit+".socket"] && strings.Contains(p.Args, " --timeout") // libvirtd has it
		list = append(list, s)
	}
	return list, nil
}

// unitDirs are the directories of systemd's units (systemd.unit(5)).
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// neededUnits are the services that, unless they are enabled, mount.nfs starts for NFSv3 or the prolog of
// a job for its GPUs.
var neededUnits = []string{"nvidia-dcgm", "nvidia-imex", "rpc-statd", "rpcbind"}

// enabledUnits returns the units that systemd starts for another unit: those with a link in a directory
// such as multi-user.target.wants.
func enabledUnits(h *probe.Host) map[string]bool {
	enabled := map[string]bool{}
	for _, dir := range unitDirs {
		targets, _ := h.Names(dir) // a node without systemd has none
		for _, t := range targets {
			if !strings.HasSuffix(t, ".target.wants") && !strings.HasSuffix(t, ".target.requires") {
				continue
			}
			units, _ := h.Names(dir + "/" + t)
			for _, u := range units {
				enabled[u] = true
			}
		}
	}
	return enabled
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

// contained reports whether a process is in a PID namespace of its own, as in a container whose
// runtime uses no control group: it has a PID there, too.
func contained(h *probe.Host, pid int) bool {
	buf := make([]byte, 8<<10)
	n, _ := probe.ReadAt(unix.AT_FDCWD, h.Path("/proc/"+strconv.Itoa(pid)+"/status"), buf) // a process that has ended is listed
	_, rest, _ := bytes.Cut(buf[:n], []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return len(bytes.Fields(line)) > 1
}

// inJob matches the control group of a Slurm job: /slurm/uid_1000/job_77, /slurm_gpu001/uid_1000/job_77.
var inJob = probe.Lazily(`/slurm[^/]*/.*\bjob_[0-9]+(/|$)`)

// parseCgroup parses /proc/PID/cgroup: lines "number:controllers:path". systemd's own have no
// controllers or "name=systemd" (cgroups(7)). With version 1 Slurm puts jobs only into groups of other
// controllers.
func parseCgroup(data []byte) (unit string, own bool) {
	path, job := "/", false
	for line := range bytes.Lines(data) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		job = job || len(f) == 3 && inJob().MatchString(f[2])
		if len(f) == 3 && (f[1] == "" || f[1] == "name=systemd") && f[2] != "/" && f[2] != "" {
			path = f[2]
		}
	}
	if path == "/" {
		return "", !job
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
		return name, !guest && !job
	}
	return "", false
}
