package cuda

import (
	"context"
	"fmt"
	"math"
	"time"
	"unsafe"
)

// Stream is a queue of work for a GPU; 0 is the default stream of every context. Closing the
// context frees it.
type Stream uintptr

// Event is a mark in a stream, with the time at which the GPU reached it. Closing the context frees
// it.
type Event uintptr

// streamNonBlocking is CU_STREAM_NON_BLOCKING: stream 0 does not wait for it.
const streamNonBlocking = 1

// NewStream creates a stream that runs in parallel with the others.
func (c *Context) NewStream() (s Stream, err error) {
	err = c.call("cuStreamCreate", uintptr(unsafe.Pointer(&s)), streamNonBlocking)
	return s, err
}

// NewEvent makes an event.
func (c *Context) NewEvent() (e Event, err error) {
	err = c.call("cuEventCreate", uintptr(unsafe.Pointer(&e)), 0)
	return e, err
}

// Record puts an event behind the work that is now in a stream.
func (c *Context) Record(e Event, s Stream) error {
	return c.call("cuEventRecord", uintptr(e), uintptr(s))
}

// Wait makes later work of a stream begin only after an event, which may be in another stream.
func (c *Context) Wait(s Stream, e Event) error {
	return c.call("cuStreamWaitEvent", uintptr(s), uintptr(e), 0)
}

// Elapsed returns the time between two events that the GPU has reached, by its own clock, which has
// a resolution of about half a microsecond.
func (c *Context) Elapsed(from, to Event) (time.Duration, error) {
	var ms float32
	if err := c.call("cuEventElapsedTime", uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(to)); err != nil {
		return 0, err
	}
	if math.IsNaN(float64(ms)) || ms < 0 || ms > 1e9 {
		return 0, fmt.Errorf("%s: %v ms, want a time", nameCall("cuEventElapsedTime", c.GPU.Ordinal), ms)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// These are the intervals at which Sync polls: none at first, as a launch takes a few microseconds,
// and longer ones when the work is long.
const (
	syncSpin = 200 * time.Microsecond
	syncStep = 100 * time.Microsecond
	syncRest = time.Millisecond
)

// Sync waits for all queued work of a stream. If ctx ends first it returns the error of ctx; the
// work continues until the context is closed.
func (c *Context) Sync(ctx context.Context, s Stream) error {
	done := c.lib.watch.beginCall("wait for the GPU in cuStreamQuery", c.GPU.Ordinal)
	defer done()
	_, err := SyncAll(ctx, []*Context{c}, []Stream{s})
	return err
}

// SyncAll waits for all queued work of one stream of each GPU. It polls the GPUs in turn, because
// work that waits for a failed GPU never ends. at is the GPU whose call failed, -1 if ctx ended
// first.
func SyncAll(ctx context.Context, gpus []*Context, streams []Stream) (at int, err error) {
	began := time.Now()
	finished := make([]bool, len(gpus))
	for left := len(gpus); ; {
		for i, c := range gpus {
			if finished[i] {
				continue
			}
			if finished[i], err = c.Done(streams[i]); err != nil {
				return i, err
			}
			if finished[i] {
				left--
			}
		}
		if left == 0 {
			return -1, nil
		}
		if err := ctx.Err(); err != nil {
			return -1, fmt.Errorf("wait for the GPU: %w", err)
		}
		switch took := time.Since(began); {
		case took < syncSpin:
		case took < 20*syncRest:
			time.Sleep(syncStep)
		default:
			time.Sleep(syncRest)
		}
	}
}

// Done reports whether all queued work of a stream is done. It also returns an error of earlier
// work, such as CUDA_ERROR_LAUNCH_FAILED.
func (c *Context) Done(s Stream) (bool, error) {
	if !c.isCurrent() {
		if err := c.Use(); err != nil {
			return false, err
		}
	}
	code, err := c.lib.result("cuStreamQuery", c.GPU.Ordinal, uintptr(s))
	if err != nil || code == 0 || code == cudaNotReady {
		return err == nil && code == 0, err
	}
	return false, c.lib.failure("cuStreamQuery", c.GPU.Ordinal, code)
}

// CopyToDevice queues a copy of pinned memory (see HostAlloc) to the GPU's memory.
func (c *Context) CopyToDevice(to Memory, from []byte, s Stream) error {
	return c.call("cuMemcpyHtoDAsync_v2", uintptr(to), address(from), uintptr(len(from)), uintptr(s))
}

// CopyToHost queues a copy of the GPU's memory to pinned memory (see HostAlloc).
func (c *Context) CopyToHost(to []byte, from Memory, s Stream) error {
	return c.call("cuMemcpyDtoHAsync_v2", address(to), uintptr(from), uintptr(len(to)), uintptr(s))
}

// CopyFromPeer queues a copy of n bytes of another GPU's memory to this one, whose copy engine
// reads them. The copy is direct after EnablePeer; otherwise it goes through the node's memory.
func (c *Context) CopyFromPeer(other *Context, to, from Memory, n uint64, s Stream) error {
	return c.call("cuMemcpyPeerAsync", uintptr(to), c.handle, uintptr(from), other.handle, uintptr(n), uintptr(s))
}

// Fill32 queues writing one 32-bit value n times.
func (c *Context) Fill32(to Memory, word uint32, n uint64, s Stream) error {
	return c.call("cuMemsetD32Async", uintptr(to), uintptr(word), uintptr(n), uintptr(s))
}
