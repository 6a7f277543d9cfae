package checks

import (
	"slices"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
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
	on *probe.CUDAGPU

	work chan func()
	err  error
}

// newTeam opens a context on every GPU of the test. A GPU on which that fails is
// reported and left out.
func (r *activeRun) newTeam(cuda *probe.CUDA) *gpuTeam {
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
// in the worker.
func (t *gpuTeam) all(do func(*gpuWorker) error) {
	var done sync.WaitGroup
	for _, w := range t.workers {
		done.Add(1)
		w.work <- func() {
			defer done.Done()
			w.err = do(w)
		}
	}
	done.Wait()
}

// each is all for what has to succeed: a GPU on which it does not is reported and does
// no more.
func (t *gpuTeam) each(doing string, do func(*gpuWorker) error) {
	t.all(do)
	t.workers = slices.DeleteFunc(t.workers, func(w *gpuWorker) bool {
		if w.err == nil {
			return false
		}
		t.r.failed(w.gpu, doing, w.err)
		w.leave()
		return true
	})
}

// close gives all contexts back, with all that is in them.
func (t *gpuTeam) close() {
	for _, w := range t.workers {
		w.leave()
	}
	t.workers = nil
}

// leave gives the context back. What may be wrong with a GPU was said when it failed.
func (w *gpuWorker) leave() {
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
