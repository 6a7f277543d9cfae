package nvml

import (
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Some errors of NVML are not about a call, but about the state of a GPU: it is lost, requires a
// reset, or has no power cable or no interrupts. Whichever call returns such an error first, the
// session stores it, makes no more calls about the GPU, and keeps the error in the snapshot.

// aboutNode is the index for calls that are not about a GPU.
const aboutNode = -1

// IsGPUState reports whether an error is the state of a GPU.
func IsGPUState(err error) bool {
	return errors.Is(err, ErrGPULost) || errors.Is(err, ErrResetRequired) || errors.Is(err, ErrNoPowerCable) || errors.Is(err, ErrNoInterrupts)
}

// note stores an error, or nil, for the GPU of the current call.
func (s *nvmlSession) note(err error) {
	if !IsGPUState(err) {
		return
	}
	s.noting.Lock()
	defer s.noting.Unlock()
	if s.states == nil {
		s.states = map[int]error{}
	}
	if s.states[s.at] == nil {
		s.states[s.at] = err
	}
}

// stateOf returns the state of a GPU, nil if none is known.
func (s *nvmlSession) stateOf(gpu int) error {
	s.noting.Lock()
	defer s.noting.Unlock()
	if gpu == aboutNode {
		return nil
	}
	return s.states[gpu]
}

// spread copies the states to the snapshot: no other values of such a GPU are known.
func (s *nvmlSession) spread() {
	s.noting.Lock()
	defer s.noting.Unlock()
	for i, err := range s.states {
		if i >= 0 && s.snapshot != nil && i < len(s.snapshot.GPUs) && !IsGPUState(s.snapshot.GPUs[i].Err) && s.lib != nil {
			s.snapshot.GPUs[i].Err = err
		}
	}
}

// pairState finds the GPU of a state after a call about two GPUs, because the error does not
// identify it. If neither GPU reports the state itself, it belongs to the GPU of the call.
func (s *nvmlSession) pairState(peer int) {
	own := s.at
	defer func() { s.at = own }()
	s.noting.Lock()
	err := s.states[own]
	delete(s.states, own)
	s.noting.Unlock()
	for _, i := range []int{peer, own} {
		s.at = i
		ask(s, "nvmlDeviceGetTemperature", fmt.Sprintf("(%d)", i), temperatureOf(s.devices[i]))
	}
	if s.at = own; s.stateOf(peer) == nil {
		s.note(err)
	}
}

// GPUsInState returns the GPUs with a state (see [IsGPUState]), with the error that reported it.
// node is such an error without a GPU, for example of nvmlInit. It makes no call.
func GPUsInState(h *probe.Host) (gpus map[*GPU]error, node error) {
	n, err := Asked(h)
	if n == nil || err != nil {
		return nil, err
	}
	s, _ := probe.Once(h, "nvml", func() (*nvmlSession, error) { return nil, err })
	s.spread()
	s.noting.Lock()
	defer s.noting.Unlock()
	gpus = map[*GPU]error{}
	for i, err := range s.states {
		if i >= 0 && i < len(n.GPUs) {
			gpus[&n.GPUs[i]] = err
		}
	}
	return gpus, s.states[aboutNode]
}

// Asked returns the snapshot of this process, or why there is none; nil, nil if NVML was not
// called. It makes no call.
func Asked(h *probe.Host) (*Snapshot, error) {
	c, ok := probe.Remembered[*nvmlSession](h, "nvml")
	if !ok || c.Err != nil {
		return nil, c.Err
	}
	return c.Value.snapshot, nil
}

// File returns the version of the library that this process has loaded, from the name of its file;
// "" if the name has none.
func File() string {
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		_, file, _ := strings.Cut(strings.TrimSpace(line), "/")
		if version, ok := strings.CutPrefix(path.Base(file), "libnvidia-ml.so."); ok && strings.Contains(version, ".") {
			return version
		}
	}
	return ""
}

// failure gives stateIn access to the error of a reading of any type.
func (r Reading[T]) failure() error { return r.Err }

// stateIn finds the state of a GPU in a snapshot from [Set].
func stateIn(v reflect.Value) error {
	if r, ok := reflect.TypeAssert[interface{ failure() error }](v); ok {
		if err := r.failure(); IsGPUState(err) {
			return err
		}
		return nil
	}
	if err, ok := reflect.TypeAssert[error](v); ok && IsGPUState(err) {
		return err
	}
	var found error
	if v.Kind() == reflect.Struct {
		for _, field := range v.Fields() {
			if err := stateIn(field); found == nil || errors.Is(err, ErrGPULost) {
				found = err
			}
		}
	}
	return found
}
