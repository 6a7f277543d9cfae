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

// Some errors of NVML are no trouble with a call, but the state of a GPU: it is lost, has to
// be reset, has no power cable or no interrupts. Whichever call meets them first, the session notes them, asks the
// GPU nothing more, and the snapshot has them from then on.

// aboutNode is the index that stands for calls about no GPU.
const aboutNode = -1

// IsGPUState says whether an error is the state of a GPU.
func IsGPUState(err error) bool {
	return errors.Is(err, ErrGPULost) || errors.Is(err, ErrResetRequired) || errors.Is(err, ErrNoPowerCable) || errors.Is(err, ErrNoInterrupts)
}

// note takes an error, nil too, for the GPU that is being asked.
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

// stateOf returns what a GPU has said of itself, nil if nothing.
func (s *nvmlSession) stateOf(gpu int) error {
	s.noting.Lock()
	defer s.noting.Unlock()
	if gpu == aboutNode {
		return nil
	}
	return s.states[gpu]
}

// spread brings the states into the snapshot: nothing more is known of such a GPU.
func (s *nvmlSession) spread() {
	s.noting.Lock()
	defer s.noting.Unlock()
	for i, err := range s.states {
		if i >= 0 && s.snapshot != nil && i < len(s.snapshot.GPUs) && !IsGPUState(s.snapshot.GPUs[i].Err) && s.lib != nil {
			s.snapshot.GPUs[i].Err = err
		}
	}
}

// pairState finds out which GPU of a pair a state is of: a call about two says only that
// it is one of them. The one that the call was made for is meant if neither says so itself.
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

// GPUsInState returns the GPUs with a state (see [IsGPUState]), and the error that said it. node is such an error that names no GPU, as that of nvmlInit.
// It asks nothing.
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

// Asked returns the snapshot that this process has, or why there is none; nil, nil if
// NVML was not asked. It asks nothing.
func Asked(h *probe.Host) (*Snapshot, error) {
	c, ok := probe.Remembered[*nvmlSession](h, "nvml")
	if !ok || c.Err != nil {
		return nil, c.Err
	}
	return c.Value.snapshot, nil
}

// File returns the version of the library that this process has loaded, by the name
// of its file, "" if that has none.
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

// failure lets stateIn see the error of a reading of any type.
func (r Reading[T]) failure() error { return r.Err }

// stateIn finds the state of a GPU in a snapshot that was given by [Set].
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
