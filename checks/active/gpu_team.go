package active

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// gpuTeam are the GPUs of a test that work at the same time, each from a goroutine of
// its own, which a context of CUDA belongs to.
type gpuTeam struct {
	r       *activeRun
	workers []*gpuWorker
}

// gpuWorker is one GPU of a team.
type gpuWorker struct {
	*loadedGPU
	on *cuda.GPU

	work chan func()
	err  error

	ctx    context.Context // of what all does now: over when the test is, or when the GPU is stuck
	cancel context.CancelCauseFunc
	rested bool // it had nothing to do, which is no proof that the work can be done
}

// newTeam opens a context on every GPU of the test. A GPU on which that fails is
// reported and left out.
func newTeam(r *activeRun, cuda *cuda.Driver) *gpuTeam {
	t := &gpuTeam{r: r}
	for _, g := range r.gpus {
		if on, ok := r.cudaGPU(cuda, g); ok {
			w := &gpuWorker{loadedGPU: &loadedGPU{gpu: g}, on: on, work: make(chan func())}
			t.workers = append(t.workers, w)
			go func() {
				for f := range w.work {
					f()
				}
			}()
		}
	}
	t.each("open the GPU", (*gpuWorker).open)
	return t
}

func (w *gpuWorker) open() error {
	l, err := openGPU(w.gpu, w.on)
	if err == nil {
		w.loadedGPU = l
	}
	return err
}

// all has every GPU do something at the same time, and waits for all. An error is left
// in the worker: errStuck in one that does not end long after others have.
func (t *gpuTeam) all(do func(*gpuWorker) error) {
	done := make(chan *gpuWorker, len(t.workers))
	for _, w := range t.workers {
		w.ctx, w.cancel = context.WithCancelCause(t.r.ctx)
		w.rested = false
		w.work <- func() {
			if w.err = do(w); w.err != nil && errors.Is(context.Cause(w.ctx), errStuck) {
				w.err = errStuck
			}
			done <- w
		}
	}
	began, ended, slowest := time.Now(), 0, time.Duration(0)
	for left := len(t.workers); left > 0; {
		var late <-chan time.Time
		if ended > 0 {
			late = time.After(time.Until(began.Add(teamPatience*slowest + patience(t.r, timeOfOthers))))
		}
		select {
		case w := <-done:
			if left--; w.err == nil && !w.rested {
				ended, slowest = ended+1, time.Since(began)
				finished(t.r, w.gpu)
			}
		case <-late:
			for _, w := range t.workers {
				w.cancel(errStuck) // nothing to those that have ended
			}
			for range left {
				<-done
			}
			left = 0
		}
	}
	for _, w := range t.workers {
		w.cancel(nil)
	}
}

// teamPatience is how many times longer than the slowest of the others a GPU may take
// for the same work, beside its patience.
const teamPatience = 4

// each is all for what has to succeed: a GPU on which it does not is reported and does
// no more.
func (t *gpuTeam) each(doing string, do func(*gpuWorker) error) {
	t.all(do)
	t.workers = slices.DeleteFunc(t.workers, func(w *gpuWorker) bool {
		if w.err == nil {
			return false
		}
		t.r.failed(w.gpu, doing, w.err)
		t.leave(w)
		return true
	})
}

// close gives all contexts back, with all that is in them.
func (t *gpuTeam) close() {
	for _, w := range t.workers {
		t.leave(w)
	}
	t.workers = nil
}

// leave gives the context back. What may be wrong with a GPU was said when it failed.
func (t *gpuTeam) leave(w *gpuWorker) {
	if leaves(t.r, w.gpu) {
		close(w.work)
		return
	}
	done := make(chan struct{})
	w.work <- func() {
		defer close(done)
		if w.c != nil {
			_ = w.c.Close()
		}
	}
	<-done
	close(w.work)
}

// inTurn is each, but with one GPU after the other, so that none disturbs another.
func (t *gpuTeam) inTurn(doing string, do func(*gpuWorker) error) {
	all := t.workers
	var left []*gpuWorker
	for _, w := range all {
		if t.r.ctx.Err() == nil {
			t.r.at("gpu%d: %s", w.gpu.Index, doing)
			t.workers = []*gpuWorker{w}
			t.each(doing, do)
			left = append(left, t.workers...)
			continue
		}
		left = append(left, w)
	}
	t.workers = left
}
