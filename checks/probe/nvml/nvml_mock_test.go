package nvml

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NVIDIA's own mock libraries implement few functions and panic in all others: a function that the
// library does not list is never called, and is "not supported".
func TestNVMLOfMockServers(t *testing.T) {
	t.Parallel()
	for name, lib := range map[string]*server.Server{"dgxa100": dgxa100.New(), "dgxh100": dgxh100.New(), "dgxh200": dgxh200.New(), "dgxb200": dgxb200.New()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lookups := onlyWhatIsThere(lib)
			h := probe.NewHost(t.TempDir())
			s, err := startNVML(h, lib, "mock", nil)
			if err != nil {
				t.Fatal(err)
			}
			s.read(AllGroups)
			n := s.snapshot
			if n.Driver != Known(lib.DriverVersion) || n.Library != Known(strings.TrimPrefix(lib.NvmlVersion, "12.")) || n.CC != (Reading[bool]{}) || len(n.GPUs) != 8 {
				t.Errorf("%+v, %+v, %+v, %d GPUs", n.Driver, n.Library, n.CC, len(n.GPUs))
			}
			for i, g := range n.GPUs {
				d, ok := lib.Devices[i].(*server.Device)
				if !ok {
					t.Fatalf("gpu%d is a %T", i, lib.Devices[i])
				}
				want := GPU{Index: i, Name: Known(d.Config.Name), UUID: Known(d.UUID), Minor: Known(i),
					MemoryTotal: Known(d.MemoryInfo.Total), Modes: Modes{MIG: Known(false), MIGPending: Known(false)}}
				if diff := cmp.Diff(want, g); diff != "" {
					t.Errorf("gpu%d (-want +got):\n%s", i, diff)
				}
			}
			if len(*lookups) < 40 {
				t.Errorf("only %d functions were looked for: %v", len(*lookups), *lookups)
			}
		})
	}
}

// An unknown error is one of permission if the driver's device cannot be opened.
func TestNVMLNotLetIn(t *testing.T) {
	t.Parallel()
	const unknown = "nvmlInit: unknown error (NVML error 999)"
	for device, want := range map[string]string{
		"":                                unknown,
		"/dev/null":                       unknown,
		"/proc/sys/kernel/random/boot_id": unknown + "; no permission: open /dev/nvidiactl: permission denied", // not even root can write it
	} {
		root := t.TempDir()
		if device != "" {
			if err := errors.Join(os.Mkdir(root+"/dev", 0o755), os.Symlink(device, root+"/dev/nvidiactl")); err != nil {
				t.Fatal(err)
			}
		}
		lib := dgxh100.New()
		lib.InitFunc = func() nvml.Return { return nvml.ERROR_UNKNOWN }
		_, err := startNVML(probe.NewHost(root), lib, "mock", nil)
		if err == nil || err.Error() != want || errors.Is(err, ErrNotPermitted) != (want != unknown) {
			t.Errorf("%s: %v, want %s", device, err, want)
		}
	}
}

// onlyWhatIsThere makes a server list its functions, and records the calls.
func onlyWhatIsThere(s *server.Server) *[]string {
	lookups := new([]string)
	s.LookupSymbolFunc = func(symbol string) error {
		*lookups = append(*lookups, symbol)
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(symbol, "nvmlDevice"), "nvml"), "_v")
		if v, ok := strings.CutPrefix(symbol[len(symbol)-3:], "_v"); ok && name == "GetMemoryInfo" {
			name += "_v" + v
		}
		for _, of := range []reflect.Value{reflect.ValueOf(s.Devices[0]).Elem().FieldByName("Device"), reflect.ValueOf(s).Elem().FieldByName("Interface")} {
			for _, field := range []string{name + "Func", "Device" + name + "Func"} {
				if f := of.FieldByName(field); f.IsValid() && !f.IsNil() {
					return nil
				}
			}
		}
		return errors.New("no such symbol")
	}
	return lookups
}
