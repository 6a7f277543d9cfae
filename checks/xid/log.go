package xid

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// xidEvent is one burst of lines: the same error of the same GPU, each within
// three minutes of the one before.
type xidEvent struct {
	Boot  string        `json:"boot"`
	Epoch int           `json:"epoch,omitempty"` // number of earlier resets of the GPU in that boot
	GPU   string        `json:"gpu"`             // PCI address of the GPU or NVSwitch
	UUID  string        `json:"uuid,omitempty"`  // of the GPU
	Key   checks.XidKey `json:"key"`
	Sub   string        `json:"sub,omitempty"` // other values that are equal within a burst, see subKey
	First int64         `json:"first"`         // Unix time, seconds
	Last  int64         `json:"last"`
	From  uint64        `json:"from,omitempty"` // record number of its first line; 0: unknown
	Seq   uint64        `json:"seq"`            // record number of its last line
	Lines int           `json:"lines"`

	Text     string `json:"text,omitempty"` // of its first line
	PID      string `json:"pid,omitempty"`
	Name     string `json:"name,omitempty"`
	Job      string `json:"job,omitempty"` // Slurm's job, if the process still existed
	Action   int    `json:"action,omitempty"`
	Place    string `json:"place,omitempty"`
	Link     string `json:"link,omitempty"`
	Asks     string `json:"asks,omitempty"` // see xidLine
	Nonfatal bool   `json:"nonfatal,omitempty"`

	Raised checks.XidClass `json:"raised,omitempty"` // by a rule with a temporary reason
	Grave  bool            `json:"grave,omitempty"`  // it drains by the tables: dropped last
	Told   bool            `json:"told,omitempty"`   // an earlier run has reported it
	Passes int             `json:"passes,omitempty"` // runs without a new line

	Drained bool `json:"drained,omitempty"` // it has drained the node

	standing bool // it drains the node now
}

// xidBurst is the longest time between two lines of a burst, seconds, as in NVIDIA's NVSentinel.
const xidBurst = 3 * 60

// Limits of the ledger: a faulty GPU can log hundreds of thousands of lines.
const (
	xidMaxEvents = 1024
	xidMaxSame   = 32      // events of one error of one GPU
	xidMemory    = 7 * day // the window of "again"
	xidMemos     = 256
	day          = 24 * 60 * 60
)

// xidScan turns records into events of a ledger.
type xidScan struct {
	ledger *xidLedger
	booted func() int64      // Unix time of the records' time 0; read only if there is an event
	own    func() []ownReset // read only if there is an event; nil: none
	memo   map[string]xidLine
	at     map[xidPlace]int // index of the newest event of a burst
	same   map[xidSame]int  // number of events
	fresh  map[xidPlace]bool
	rows   map[checks.XidKey]xidRow
	full   bool // events were not kept
}

type xidSame struct {
	gpu string
	key checks.XidKey
}

type xidPlace struct {
	xidSame
	sub string
}

func newXidScan(l *xidLedger, booted func() int64) *xidScan {
	s := &xidScan{ledger: l, booted: booted, memo: map[string]xidLine{}, fresh: map[xidPlace]bool{}, rows: map[checks.XidKey]xidRow{}}
	s.buildIndex()
	return s
}

func (s *xidScan) buildIndex() {
	s.at, s.same = map[xidPlace]int{}, map[xidSame]int{}
	for i := range s.ledger.Events {
		e := &s.ledger.Events[i]
		s.at[e.place()] = i
		s.same[e.place().xidSame]++
	}
}

func (e *xidEvent) place() xidPlace { return xidPlace{xidSame{e.GPU, e.Key}, e.Sub} }

// add adds one line of a log if it is trusted.
func (s *xidScan) add(r probe.KernelRecord) {
	if l, ok := checks.Believe(r.Text, r.Cont, checks.AboutGPU); ok {
		s.addTrusted(r, l)
	}
}

// addTrusted adds one trusted line.
func (s *xidScan) addTrusted(r probe.KernelRecord, trusted checks.KernelLine) {
	line, ok := s.memo[string(r.Text)] // floods repeat few lines
	if !ok {
		line = readXid(trusted)
		if len(s.memo) < xidMemos {
			s.memo[string(r.Text)] = line
		}
	}
	l := s.ledger
	switch line.Kind {
	case lineXid:
		s.addEvent(line, r.Seq, s.booted()+int64(r.At.Seconds()))
	case lineUUID:
		if l.UUIDs == nil {
			l.UUIDs = map[string]string{}
		}
		if len(l.UUIDs) < xidMemos {
			l.UUIDs[line.GPU] = line.UUID
		}
	case lineLoad:
		l.Driver = line.Driver
		s.countReset("", r.Seq)
	case lineReset:
		s.countReset(line.GPU, r.Seq)
	}
}

// addEvent adds a line to its burst, or starts a burst.
func (s *xidScan) addEvent(line xidLine, seq uint64, now int64) {
	l := s.ledger
	s.countOwn(seq)
	if line.WasReset {
		s.countReset(line.GPU, seq)
	}
	e := xidEvent{
		Boot: l.Boot, Epoch: l.epoch(line.GPU), GPU: line.GPU, Key: line.Key, First: now, Last: now, From: seq, Seq: seq, Lines: 1,
		Text: line.Text, PID: line.PID, Name: line.Name, Action: line.Action, Place: line.Place, Link: line.Link, Asks: line.Asks, Nonfatal: line.Nonfatal,
	}
	e.Sub = line.subKey()
	if line.Bare && s.followsSecurityFault(&e) {
		return
	}
	place := e.place()
	s.fresh[place] = true
	if i, ok := s.at[place]; ok {
		old := &l.Events[i]
		same := old.Boot == e.Boot && old.Epoch == e.Epoch
		if same && (now-old.Last <= xidBurst || s.same[place.xidSame] >= xidMaxSame) {
			old.Last, old.Seq, old.Passes = max(old.Last, now), seq, 0
			old.Lines++
			return
		}
	}
	e.Grave = s.isGrave(&e)
	if s.same[place.xidSame] >= xidMaxSame {
		s.replace(e)
		return
	}
	if len(l.Events) >= xidMaxEvents {
		s.makeRoom()
	}
	l.Events = append(l.Events, e)
	s.at[place] = len(l.Events) - 1
	s.same[place.xidSame]++
}

// followsSecurityFault reports whether the GPU has just had a security fault: the driver then takes it for lost, and
// logs that, but no Xid 79 (osHandleGpuLost without bEmitXid), because the GPU is still on the bus.
func (s *xidScan) followsSecurityFault(e *xidEvent) bool {
	i, ok := s.at[xidPlace{xidSame{e.GPU, checks.XidKey{Code: xidSecurityFault}}, ""}]
	return ok && s.ledger.Events[i].Epoch == e.Epoch && s.ledger.Events[i].near(e)
}

// isGrave reports whether an event drains the node by the tables alone.
func (s *xidScan) isGrave(e *xidEvent) bool {
	r, ok := s.rows[e.Key]
	if !ok {
		r = (&xidPolicy{}).row(e.Key)
		if len(s.rows) < xidMemos {
			s.rows[e.Key] = r
		}
	}
	class, _ := (&xidJudge{ledger: s.ledger}).classify(e, &r)
	return class.Drains()
}

// weight orders events by what would be lost without them: first those that do not drain the node, last those
// that drain it until an operator clears them, which no later event would show.
func (e *xidEvent) weight() int {
	switch {
	case e.Raised == checks.XidHold:
		return 2
	case e.Grave:
		return 1
	}
	return 0
}

// makeRoom drops old events, those that do not drain the node first.
func (s *xidScan) makeRoom() {
	s.full = true
	drop := xidMaxEvents / 8
	for weight := range 3 {
		s.ledger.Events = slices.DeleteFunc(s.ledger.Events, func(e xidEvent) bool {
			if e.weight() > weight || drop == 0 {
				return false
			}
			drop--
			return true
		})
	}
	s.buildIndex()
}

// replace replaces the oldest event of the same error, preferably one that does not drain the node.
func (s *xidScan) replace(e xidEvent) {
	oldest := -1
	for i := range s.ledger.Events {
		x := &s.ledger.Events[i]
		if x.GPU != e.GPU || x.Key != e.Key {
			continue
		}
		if oldest < 0 {
			oldest = i
			continue
		}
		if old := &s.ledger.Events[oldest]; x.weight() == old.weight() && x.Last < old.Last || x.weight() < old.weight() {
			oldest = i
		}
	}
	old := &s.ledger.Events[oldest]
	if old.weight() > e.weight() {
		return
	}
	if s.at[old.place()] == oldest {
		delete(s.at, old.place())
	}
	*old = e
	s.at[e.place()] = oldest
}

// subKey returns the values that separate lines of one error: the link, the place, the severity in the
// line, the recovery action, the driver's verdict.
func (l *xidLine) subKey() string {
	switch {
	case l.Key.Switch:
		return fmt.Sprint(l.Link, " ", l.Nonfatal)
	case l.Key.Code == xidRecoveryAction:
		return fmt.Sprint(l.Action)
	case l.Key.Code == xidNVLink:
		class, _, _ := decodeNVLink74(l.Text)
		return strings.TrimSpace(l.Link + " " + string(class))
	case l.Key.Code >= 144 && l.Key.Code <= 150:
		if n, ok := parseNVLink5(l.Text); ok {
			return fmt.Sprintf("%s %s %x %x", n.Unit, n.Link, n.Intr, n.Status)
		}
	}
	return strings.TrimSpace(l.Link + " " + l.Place + " " + l.Asks)
}

// recordXids reads the kernel's log into a ledger. notes are findings about the reading itself.
func recordXids(env *checks.Env, ledger *xidLedger) (scan *xidScan, notes []checks.Finding, err error) {
	var bootErr error
	asked := false
	booted := func() int64 { // reading /proc/stat costs milliseconds on a large node
		if !asked {
			asked = true
			epoch, err := probe.LogEpoch(env.Host)
			if bootErr = err; err == nil {
				ledger.setEpoch(epoch)
			}
		}
		return ledger.Epoch
	}
	if slices.ContainsFunc(ledger.Events, func(x xidEvent) bool { return x.Boot == ledger.Boot }) {
		booted()
	}
	from := ledger.Cursor
	own := sync.OnceValue(func() []ownReset { return recallResets(env, ledger.Boot).List })
	scan = newXidScan(ledger, booted)
	scan.own = own
	end, err := checks.ReadKernelLog(env, from, checks.AboutGPU, scan.addTrusted)
	if err != nil {
		return nil, nil, err
	}
	if end.Next > 0 && end.Next < from { // the cursor is of another log
		ledger.Events = slices.DeleteFunc(ledger.Events, func(x xidEvent) bool { return x.Boot == ledger.Boot })
		ledger.Resets, ledger.ResetAt, ledger.Epoch, asked, from = nil, nil, 0, false, 0
		if list := own(); len(list) > 0 {
			ledger.Own = list[len(list)-1].N
		}
		scan = newXidScan(ledger, booted)
		if end, err = checks.ReadKernelLog(env, 0, checks.AboutGPU, scan.addTrusted); err != nil {
			return nil, nil, err
		}
	}
	if bootErr != nil {
		return nil, nil, bootErr
	}
	if len(ledger.Events) > 0 {
		scan.countOwn(math.MaxUint64)
	}
	if end.Next > 0 {
		ledger.Cursor = end.Next
	}
	if from > 0 && end.First > from || end.Overrun {
		notes = append(notes, checks.Finding{Code: "gpu.xid.lost", Severity: checks.Warn}.
			Describe("check_gpu_xid", "the kernel has overwritten records of its log before they were read: Xids may be lost"))
	}
	if end.Cut || scan.full {
		notes = append(notes, checks.Finding{Code: "gpu.xid.flood", Severity: checks.Warn}.Describe("check_gpu_xid", "the kernel logs more Xids than the check can record: the oldest ones are dropped"))
	}
	return scan, notes, nil
}
