package worker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// watcher listens to a source of events.
type watcher interface {
	// wait waits until there are events, at most for the limit.
	wait(l listen) (*wire.Heard, error)
}

// sources open the sources of events by their names.
var sources = map[string]func(w *worker, l listen) (watcher, error){
	monitor.Kernel:  openKernelWatch,
	monitor.Links:   openLinkWatch,
	monitor.Ports:   func(w *worker, _ listen) (watcher, error) { return newPortWatch(w), nil },
	monitor.Devices: openDeviceWatch,
	monitor.Slurmd:  func(w *worker, _ listen) (watcher, error) { return &slurmdWatch{w: w}, nil },
	monitor.Jobs:    func(w *worker, _ listen) (watcher, error) { return openJobWatch(w), nil },
	monitor.GPUs:    func(w *worker, l listen) (watcher, error) { return openGPUWatch(w, l.doing) },
}

// listen is a request to wait.
type listen struct {
	limit time.Duration
	jobs  []string // on the node
	doing func(string)
	mark  *checks.LogMark // up to where an earlier worker has read the source
}

// watch waits for events of a source.
func watch(w *worker, req *wire.Request) *wire.Response {
	if w.watches == nil {
		w.watches = map[string]watcher{}
	}
	l := listen{req.Timeout, req.Args, w.doing(req), req.Mark}
	s := w.watches[req.Name]
	if req.Name == monitor.GPUs && len(l.jobs) == 0 {
		if c, ok := s.(interface{ Close() }); ok {
			c.Close()
		}
		return &wire.Response{Heard: &wire.Heard{}, Worn: true}
	}
	if s == nil {
		open, ok := sources[req.Name]
		if !ok {
			return &wire.Response{Err: fmt.Sprintf("watch %s: there is no such source of events", req.Name)}
		}
		var err error
		if s, err = open(w, l); err != nil {
			return lostWatch(err)
		}
		w.watches[req.Name] = s
	}
	l.doing("wait for events of " + req.Name)
	heard, err := s.wait(l)
	if err != nil {
		if c, ok := s.(interface{ Close() }); ok {
			c.Close()
		}
		return lostWatch(err)
	}
	heard.Notes, w.notes = w.notes, nil
	resp := &wire.Response{Heard: heard}
	switch s := s.(type) {
	case *kernelWatch:
		resp.Mark = &checks.LogMark{Boot: s.boot, Next: s.next}
	case *gpuWatch:
		if s.again > 0 && probe.SinceBoot() >= s.again {
			s.Close()
			resp.Worn = true
		}
	}
	return resp
}

// lostWatch answers for a source that cannot be opened or heard. A new process opens it again: this one remembers
// errors, that of nvmlInit for example.
func lostWatch(err error) *wire.Response { return &wire.Response{Err: err.Error(), Worn: true} }

// add adds an event, unless there is one of its kind.
func add(h *wire.Heard, kind monitor.Kind, text string) {
	if !slices.ContainsFunc(h.Events, func(e wire.Event) bool { return e.Kind == string(kind) }) {
		h.Events = append(h.Events, wire.Event{Kind: string(kind), Text: text})
	}
}

// kernelWatch follows the kernel's log.
type kernelWatch struct {
	log  *probe.KernelTail
	boot string
	next uint64 // the first unread record
	read bool   // the records of the log before its opening were read or skipped
}

// openKernelWatch opens the log at a mark of this boot, or at its end.
func openKernelWatch(w *worker, l listen) (watcher, error) {
	boot, err := probe.BootID(w.host)
	if err != nil {
		return nil, err
	}
	log, err := probe.OpenKernelLog(w.host)
	if err != nil {
		return nil, err
	}
	k := &kernelWatch{log: log, boot: boot, next: math.MaxUint64}
	if l.mark != nil && l.mark.Boot == boot {
		k.next = l.mark.Next
	}
	return k, nil
}

// Close closes the log.
func (k *kernelWatch) Close() { k.log.Close() }

// drainPause is the time between two readings of a log whose lines wake nothing, and which goes on: a
// kernel that prints without end costs ten readings a second.
const drainPause = 100 * time.Millisecond

func (k *kernelWatch) wait(l listen) (*wire.Heard, error) {
	heard := &wire.Heard{}
	for end := time.Now().Add(l.limit); ; {
		if k.read {
			if err := k.log.Wait(max(0, time.Until(end))); err != nil {
				return nil, err
			}
		}
		got, err := k.log.Read(k.next, func(r probe.KernelRecord) {
			if kind := kindOf(r); kind != "" {
				add(heard, kind, string(r.Text))
			}
		})
		if err != nil {
			return nil, err
		}
		k.read = true
		if heard.Lost += got.Lost; got.Lost == 0 && got.Overrun {
			heard.Lost++
		}
		switch {
		case got.Next > 0:
			k.next = got.Next
		case k.next == math.MaxUint64: // an empty log
			k.next = 0
		}
		left := time.Until(end)
		if len(heard.Events) > 0 || heard.Lost > 0 || left <= 0 {
			return heard, nil
		}
		if got.Next > 0 {
			time.Sleep(min(drainPause, left))
		}
	}
}

// kindOf returns the kind of event that a record of the kernel's log is, "" for none.
func kindOf(r probe.KernelRecord) monitor.Kind {
	if _, ok := checks.Believe(r.Text, r.Cont, checks.AboutGPU); ok {
		return monitor.GPU
	}
	if _, ok := checks.Believe(r.Text, r.Cont, checks.AboutLink); ok {
		return monitor.Link
	}
	if kind := monitor.KindOf(r.Text); kind != "" { // also of the lines of klog.toml that are about no device
		return kind
	}
	if _, ok := checks.Believe(r.Text, r.Cont, checks.AboutDevice); ok {
		return monitor.Device
	}
	return ""
}

// linkWatch listens to changes of network interfaces.
type linkWatch struct{ *network.LinkWatch }

func openLinkWatch(w *worker, _ listen) (watcher, error) {
	links, err := network.WatchLinks(w.host)
	return linkWatch{links}, err
}

func (n linkWatch) wait(l listen) (*wire.Heard, error) {
	changed, lost, err := n.Wait(l.limit)
	return hear(monitor.Link, changed, lost), err
}

// deviceWatch listens to the removal of devices.
type deviceWatch struct{ *probe.DeviceWatch }

func openDeviceWatch(*worker, listen) (watcher, error) {
	d, err := probe.WatchDevices()
	return deviceWatch{d}, err
}

func (d deviceWatch) wait(l listen) (*wire.Heard, error) {
	removed, lost, err := d.Wait(l.limit)
	return hear(monitor.Device, removed, lost), err
}

// hear returns changes as one event.
func hear(kind monitor.Kind, changed []string, lost bool) *wire.Heard {
	heard := &wire.Heard{}
	if len(changed) > 0 {
		add(heard, kind, strings.Join(changed[:min(len(changed), 8)], ", "))
	}
	if lost {
		heard.Lost = 1
	}
	return heard
}

// portPace is the time between two looks at InfiniBand ports.
const portPace = time.Second

// portWatch looks at the states of InfiniBand ports, which no message reports, and samples all RDMA ports while
// jobs run.
type portWatch struct {
	ports   *rdma.PortWatch
	looked  time.Duration // at the ports, since the boot
	states  map[string]string
	samples portSamples
}

func newPortWatch(w *worker) *portWatch {
	return &portWatch{ports: rdma.WatchPorts(w.host), samples: portSamples{recording: recording{w: w, source: monitor.Ports}}}
}

// Close closes the files of the ports, and the ring.
func (p *portWatch) Close() {
	p.ports.Close()
	p.samples.Close()
}

func (p *portWatch) wait(l listen) (*wire.Heard, error) {
	for end := time.Now().Add(l.limit); ; {
		if pause := tick(p.looked+portPace) - probe.SinceBoot(); pause > 0 { // a port that flaps has changed at each look
			time.Sleep(min(pause, max(0, time.Until(end))))
		}
		p.looked = probe.SinceBoot()
		now, err := p.ports.States()
		if err != nil {
			return nil, err
		}
		changed := rdma.ChangedPorts(p.states, now)
		p.states = now
		ports := len(now)
		if len(l.jobs) > 0 {
			names := sampledPorts(p.ports.Names())
			if ports = len(names); ports > 0 {
				p.samples.sample(names, p.ports.Loads(names))
			}
		}
		left := time.Until(end)
		if len(changed) > 0 || left <= 0 {
			return hear(monitor.Link, changed, false), nil
		}
		if ports == 0 { // a node without InfiniBand
			time.Sleep(left)
		}
	}
}

// slurmdWatch waits for the end of slurmd.
type slurmdWatch struct {
	w   *worker
	fds map[int]int // by PID, see jobscan.Slurmds

	ended    time.Time // the last one
	confined bool      // the monitor keeps off the CPUs of jobs
}

// slurmdPace is the time between the end of a slurmd and the search for the next.
const slurmdPace = 5 * time.Second

func (s *slurmdWatch) wait(l listen) (*wire.Heard, error) {
	if pid, err := s.look(l.limit); err != nil || pid != 0 {
		return s.gone(pid), err
	}
	pid, err := jobscan.AwaitEnd(s.fds, l.limit)
	return s.gone(pid), err
}

// look lists the slurmds if there is none, or one has no descriptor. It returns one that has ended since the last look.
func (s *slurmdWatch) look(limit time.Duration) (ended int, err error) {
	if len(s.fds) == 0 {
		if pause := slurmdPace - time.Since(s.ended); pause > 0 {
			time.Sleep(min(pause, limit))
		}
	} else if !slices.Contains(slices.Collect(maps.Values(s.fds)), -1) {
		return 0, nil
	}
	was := s.fds
	if s.fds, err = jobscan.Slurmds(s.w.host); err != nil {
		return 0, err
	}
	for pid, fd := range was {
		if unix.Close(fd); s.fds[pid] == 0 {
			ended = pid
		}
	}
	if ended == 0 {
		if err := s.confine(); err != nil {
			s.w.note("%v", err)
		}
	}
	return ended, nil
}

// gone returns the event of a slurmd that has ended, none for the PID 0.
func (s *slurmdWatch) gone(pid int) *wire.Heard {
	if pid == 0 {
		return &wire.Heard{}
	}
	for fd := range maps.Values(s.fds) {
		unix.Close(fd)
	}
	s.fds, s.ended = nil, time.Now()
	return hear(monitor.Service, []string{fmt.Sprintf("slurmd with PID %d has ended", pid)}, false)
}

// confine keeps the monitor, which is the parent, and its workers off the CPUs of jobs, if Slurm leaves some to the
// system. It runs again after each start of slurmd: its configuration may have changed.
func (s *slurmdWatch) confine() error {
	set, known := jobscan.SystemCPUs(s.w.host, slices.Collect(maps.Keys(s.fds)))
	switch {
	case known:
	case !s.confined || set.Count() == 0: // else Slurm no longer leaves some, and slurmd runs on all
		return nil
	}
	if err := checkParent(s.w.vars.Supervisor); err != nil { // or it would move init
		return err
	}
	s.confined = known
	return jobscan.Confine(s.w.vars.Supervisor, &set)
}
