package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// conn is the connection to a rank that has proven itself: a [wire.Conn].
type conn interface {
	Send(m *wire.Message) error
	Receive() (*wire.Message, error) // fails after the silence of the ticket, too
	Beat(ctx context.Context)
	Close() error
}

// queue is the number of messages that wait for a rank at most. A rank that does not read them is lost.
const queue = 512

// parting is how long a last message may take.
const parting = time.Second

// hub holds the connections to the ranks, and passes each message to its task.
type hub struct {
	log func(format string, args ...any)

	mu        sync.Mutex
	open      bool                 // ranks are still welcome
	want      map[string]bool      // the nodes of the sweep
	peers     map[string]*peer     // by node
	known     map[string]*peer     // all that were ever there
	lost      map[string]string    // nodes whose rank has ended by itself or is silent, and why
	when      map[string]time.Time // of each loss
	refused   map[string]string    // nodes whose rank was refused, and why
	byes      map[string]string    // nodes whose rank was ended by others, and why: no fault of the node
	boxes     map[int]*box         // by task
	changed   chan struct{}        // closed at each change of peers, lost, refused or byes
	forgiving bool                 // the end of a rank is no loss: its step starts again
	ended     bool
	stopped   string        // that this process was stopped, and for how long
	silence   time.Duration // after which a rank is lost
	beat      time.Time     // when this process was last seen to run
}

// peer is a rank.
type peer struct {
	node sweep.Node
	conn conn
	out  chan *wire.Message
	gone context.Context // ends when it is lost
	end  context.CancelFunc
}

// box gets the messages of the ranks of a task.
type box struct {
	nodes []string
	ranks map[string]int // by node
	mail  chan mail
}

// mail is a message of a rank about a task, or its loss.
type mail struct {
	rank  int
	ready *wire.Ready
	done  *wire.Done
	lost  string // why
	bye   bool   // others have ended it
}

func newHub(nodes []string, silence time.Duration, log func(string, ...any)) *hub {
	h := &hub{
		log: log, open: true, forgiving: true, silence: silence, beat: time.Now(),
		when: map[string]time.Time{}, want: map[string]bool{}, peers: map[string]*peer{}, known: map[string]*peer{}, lost: map[string]string{},
		refused: map[string]string{}, byes: map[string]string{}, boxes: map[int]*box{}, changed: make(chan struct{}),
	}
	for _, n := range nodes {
		h.want[n] = true
	}
	return h
}

// notify wakes everything that waits for a change. The caller holds mu.
func (h *hub) notify() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// serve listens to ranks until the listener is closed.
func (h *hub) serve(l *wire.Listener) {
	done := make(chan struct{})
	defer close(done)
	go h.pulse(done)
	for {
		c, err := l.Accept(context.Background())
		refused, isRefused := errors.AsType[*wire.RefusedError](err)
		switch {
		case isRefused:
			h.refuse(refused.Hello.Node.Name, refused.Why)
		case err != nil:
			return
		default:
			go h.talk(c, c.Hello.Node)
		}
	}
}

// pulse notes that this process runs.
func (h *hub) pulse(done <-chan struct{}) {
	tick := time.NewTicker(h.silence / 8)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			h.look(h.wake)
		}
	}
}

// wake notices that this process was stopped for so long (Ctrl-Z, a frozen virtual machine) that ranks
// may have ended for want of it, or seem silent, and that tasks have had their time. The caller holds mu.
func (h *hub) wake() {
	now := time.Now()
	if gap := now.Sub(h.beat); gap > h.silence/2 && h.stopped == "" && !h.forgiving && !h.ended {
		h.stopped = fmt.Sprintf("this process was stopped for %s", gap.Round(time.Second))
		h.notify()
	}
	h.beat = now
}

// admit returns why a rank is refused that has the token, "" if it is not.
func (h *hub) admit(hello *wire.Hello) (why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch name := hello.Node.Name; {
	case !h.want[name]:
		return fmt.Sprintf("node %s is not part of this sweep", name)
	case h.peers[name] != nil:
		return fmt.Sprintf("node %s has a rank already", name)
	case !h.open || h.ended:
		return fmt.Sprintf("the sweep has begun without node %s", name)
	}
	return ""
}

// refuse notes that the rank of a node was refused. That of a second rank says nothing about the first.
func (h *hub) refuse(node, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.want[node] && h.peers[node] == nil {
		h.refused[node] = why
		h.notify()
	}
}

// join takes a rank in; nil: another one was faster.
func (h *hub) join(c conn, node sweep.Node) *peer {
	p := &peer{node: node, conn: c, out: make(chan *wire.Message, queue)}
	p.gone, p.end = context.WithCancel(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open || h.ended || !h.want[node.Name] || h.peers[node.Name] != nil {
		return nil
	}
	h.peers[node.Name], h.known[node.Name] = p, p
	delete(h.lost, node.Name)
	delete(h.byes, node.Name)
	h.notify()
	return p
}

// talk talks to a rank until its end.
func (h *hub) talk(c conn, node sweep.Node) {
	defer c.Close()
	p := h.join(c, node)
	if p == nil {
		return
	}
	go c.Beat(p.gone)
	go p.write(h)
	for {
		m, err := c.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			h.lose(p, "its rank is silent")
			return
		case err != nil:
			h.lose(p, "its rank has ended")
			return
		case !h.take(p, m):
			return
		}
	}
}

// write sends the messages of a rank.
func (p *peer) write(h *hub) {
	for {
		select {
		case <-p.gone.Done():
			return
		case m := <-p.out:
			if err := p.conn.Send(m); err != nil { // if it has gone, talk reads its last message first
				time.AfterFunc(parting, func() { h.lose(p, "its rank does not read") })
				return
			}
		}
	}
}

// take takes a message of a rank; it returns false after the last one.
func (h *hub) take(p *peer, m *wire.Message) bool {
	switch {
	case m.Ready != nil:
		h.deliver(p, m.Ready.ID, mail{ready: m.Ready})
	case m.Done != nil:
		h.deliver(p, m.Done.ID, mail{done: m.Done})
	case m.Bye != "":
		h.mu.Lock()
		h.drop(p, m.Bye, true)
		h.mu.Unlock()
		return false
	}
	return true
}

// deliver passes a message to its task. A message about a task that is over, or of a node that is not in
// it, is dropped.
func (h *hub) deliver(p *peer, id int, m mail) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[id]
	if b == nil || h.peers[p.node.Name] != p {
		return
	}
	var known bool
	if m.rank, known = b.ranks[p.node.Name]; !known {
		return
	}
	select {
	case b.mail <- m:
	default: // more messages than any rank sends
	}
}

// lose takes a rank away. Its tasks learn of it.
func (h *hub) lose(p *peer, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(p, why, false)
}

func (h *hub) drop(p *peer, why string, bye bool) {
	name := p.node.Name
	if h.peers[name] != p {
		return
	}
	delete(h.peers, name)
	p.end()
	time.AfterFunc(parting, func() { p.conn.Close() }) // a last message may be on its way
	if h.wake(); h.stopped != "" {
		why, bye = h.stopped, true
	}
	if !h.forgiving && !h.ended {
		if bye {
			h.byes[name] = why
		} else {
			h.lost[name], h.when[name] = why, time.Now().UTC()
		}
		h.log("node %s: %s", name, why)
		for _, b := range h.boxes {
			if rank, known := b.ranks[name]; known {
				select {
				case b.mail <- mail{rank: rank, lost: why, bye: bye}:
				default:
				}
			}
		}
	}
	h.notify()
}

// send queues a message for a rank. A rank that is lost gets none.
func (h *hub) send(node string, m *wire.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[node]
	if p == nil {
		return false
	}
	select {
	case p.out <- m:
		return true
	default:
		h.drop(p, "its rank does not read", false)
		return false
	}
}

// begin makes a task's box. missing are its nodes that have no rank, with the reason; bye means that
// others have ended one of them.
func (h *hub) begin(t *sweep.Task) (b *box, missing map[string]string, bye bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	missing = map[string]string{}
	b = &box{nodes: t.Nodes, ranks: make(map[string]int, len(t.Nodes)), mail: make(chan mail, 4*len(t.Nodes)+4)}
	for i, n := range t.Nodes {
		b.ranks[n] = i
		if h.peers[n] == nil {
			missing[n] = cmp.Or(h.lost[n], h.byes[n], h.refused[n], "it has no rank")
			bye = bye || h.byes[n] != ""
		}
	}
	h.boxes[t.ID] = b
	return b, missing, bye
}

func (h *hub) finish(t *sweep.Task) {
	h.mu.Lock()
	delete(h.boxes, t.ID)
	h.mu.Unlock()
	for _, n := range t.Nodes {
		h.send(n, &wire.Message{Stop: &wire.Stop{ID: t.ID}})
	}
}

// start closes the sweep to further ranks: from now on the end of a rank is a loss. It returns the nodes
// that are there, by name.
func (h *hub) start() []sweep.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open, h.forgiving = false, false
	var nodes []sweep.Node
	for _, name := range slices.Sorted(maps.Keys(h.peers)) {
		nodes = append(nodes, h.peers[name].node)
	}
	return nodes
}

// end sends all ranks a last message.
func (h *hub) end(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, p := range h.peers {
		select {
		case p.out <- &wire.Message{Bye: why}:
		default:
			p.conn.Close()
		}
	}
	h.notify()
}

// look calls f with the state, under the lock, and returns a channel that is closed at the next change.
func (h *hub) look(f func()) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	return h.changed
}
