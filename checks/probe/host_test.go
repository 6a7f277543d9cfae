package probe

import (
	"sync"
	"testing"
)

// A load watcher and net_dns use a Host concurrently: go test -race shows that they can.
func TestHostOfManyGoroutines(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	h.SetPast(t.TempDir())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				mounts, err := Mounts(h)
				if err != nil || len(mounts) == 0 {
					t.Errorf("%d mounts, %v", len(mounts), err)
				}
				if _, err := ReadMemory(h); err != nil {
					t.Error(err)
				}
				if _, err := Processes(h); err != nil {
					t.Error(err)
				}
				_ = h.Recall("x", new(int))
				_, _, _ = h.Blocked(), h.Unanswered(), Kept[int](h, "x")
				ForgetMounts(h)
			}
		})
	}
	all.Wait()
}
