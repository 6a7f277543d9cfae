package sweep

import (
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
)

// watcher shows how far a sweep is: on a terminal in one line that changes, elsewhere in a line at each
// stage and every plainEvery.
type watcher struct {
	line  *console.Progress // nil: there is no terminal
	print func(format string, args ...any)

	mu    sync.Mutex
	head  string // of the last plain line
	plain time.Time
}

const plainEvery = 5 * time.Minute

func newWatcher(line *console.Progress) *watcher { return &watcher{line: line, print: logLine} }

// log prints a line about the sweep.
func (w *watcher) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line.Clear()
	w.print(format, args...)
}

// progress shows how far the sweep is.
func (w *watcher) progress(p launch.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := sweeppage.Line{
		Stage: p.Stage, Doing: p.Doing, Round: p.Round, Rounds: p.Round + p.Left, Running: p.Tasks - p.Ended, Suspects: p.Suspects, Left: p.About,
	}.String()
	if w.line != nil {
		w.line.Say("%s", text)
		return
	}
	if head := string(p.Stage) + p.Doing; head != w.head || time.Since(w.plain) >= plainEvery {
		w.head, w.plain = head, time.Now()
		w.print("%s", text)
	}
}
