package pci

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// at writes bytes into a configuration space.
func at(config string, offset int, text string) string {
	return config[:offset] + text + config[offset+len(text):]
}

func TestPCIConfig(t *testing.T) {
	t.Parallel()
	adapter := fakesys.PCIConfig{ReadRequest: 4096, ACS: -1}.Config()
	bridge := fakesys.PCIConfig{ReadRequest: 128, NoRelaxed: true, ACS: fakesys.Redirect | 1}.Config()
	ones := strings.Repeat("\xff", 256)
	circle := at(at(adapter, 0x40, "\x01\x50"), 0x50, "\x05\x40")
	further := at(at(at(adapter, 0x40, "\x01\x51"), 0x50, "\x10\x00"), 0x58, "\x30\x20")
	deep := bridge[:0x100] + "\x01\x00\x01\x12" + strings.Repeat(".", 0x1c) + "\x0d\x00\x01\x00..\x04\x00" // ACS is the second
	loop := bridge[:0x100] + "\x01\x00\x01\x12" + strings.Repeat(".", 0x1c) + "\x02\x00\x01\x10"
	redirect := ACSSourceValidation | ACSRequestRedirect | ACSCompletionRedirect | ACSUpstreamForwarding
	for name, c := range map[string]struct {
		config string
		want   Config
		err    error
	}{
		"an adapter":                     {adapter, Config{Express: true, ReadRequest: 4096, Payload: 256, Relaxed: true, Extended: true}, nil},
		"a bridge":                       {bridge, Config{Express: true, ReadRequest: 128, Payload: 256, Extended: true, HasACS: true, ACS: redirect}, nil},
		"further down":                   {further, Config{Express: true, ReadRequest: 512, Payload: 256, Relaxed: true, Extended: true}, nil},
		"ACS further down":               {deep, Config{Express: true, ReadRequest: 128, Payload: 256, Extended: true, HasACS: true, ACS: ACSRequestRedirect}, nil},
		"a circle":                       {circle, Config{}, nil},
		"a circle of the extended list":  {loop, Config{Express: true, ReadRequest: 128, Payload: 256, Extended: true}, nil},
		"somebody who is not root":       {adapter[:64], Config{}, nil},
		"no extended space":              {adapter[:256], Config{Express: true, ReadRequest: 4096, Payload: 256, Relaxed: true}, nil},
		"no access to extended space":    {adapter[:256] + ones, Config{Express: true, ReadRequest: 4096, Payload: 256, Relaxed: true}, nil},
		"cut in the registers":           {adapter[:0x49], Config{}, nil},
		"cut in the extended registers":  {bridge[:0x107], Config{Express: true, ReadRequest: 128, Payload: 256}, nil},
		"gone":                           {ones, Config{Gone: true}, nil},
		"gone behind the header":         {adapter[:64] + ones, Config{}, nil},
		"a virtual function":             {at(adapter, 0, "\xff\xff\xff\xff"), Config{Express: true, ReadRequest: 4096, Payload: 256, Relaxed: true, Extended: true}, nil},
		"no capability":                  {at(adapter, 6, "\x00\x00"), Config{}, nil},
		"a list that begins in a header": {at(adapter, 0x34, "\x10"), Config{}, nil},
		"empty":                          {"", Config{}, errConfig},
		"short":                          {adapter[:63], Config{}, errConfig},
	} {
		got, err := parsePCIConfig(strings.NewReader(c.config))
		if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// unreadable is a configuration space that cannot be read from some offset on.
type unreadable struct {
	io.ReaderAt

	from int64
}

func (s unreadable) ReadAt(b []byte, off int64) (int, error) {
	if off >= s.from {
		return 0, os.ErrDeadlineExceeded
	}
	return s.ReaderAt.ReadAt(b, off)
}

func TestPCIConfigUnreadable(t *testing.T) {
	t.Parallel()
	whole := strings.NewReader(fakesys.PCIConfig{ACS: 0}.Config())
	for _, from := range []int64{0, 0x40, 0x48, 0x100, 0x106} {
		if c, err := parsePCIConfig(unreadable{whole, from}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("from %#x: %+v, %v", from, c, err)
		}
	}
	dir := "sys/bus/pci/devices/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{dir + "0000:c1:00.0/config": "x", dir + "0000:c2:00.0/config/": "", dir + "0000:c3:00.0/config": fakesys.Gone, dir + "0000:c3:00.0/power_state": "D3cold\n"}))
	for address, want := range map[string]string{
		"0000:c1:00.0": "read /sys/bus/pci/devices/0000:c1:00.0/config: not a configuration space",
		"0000:c2:00.0": "read /sys/bus/pci/devices/0000:c2:00.0/config: is a directory",
	} {
		if _, err := ReadConfig(h, address); probetest.Message(err) != want {
			t.Errorf("%s: %v, want %s", address, err, want)
		}
	}
	for _, address := range []string{"0000:c3:00.0", "0000:c4:00.0"} { // one is switched off, one is missing
		if c, err := ReadConfig(h, address); !errors.Is(err, fs.ErrNotExist) || c.Gone {
			t.Errorf("%s: %+v, %v", address, c, err)
		}
	}
}

// Whatever a device returns, the parser ends, and reports only registers that it has read.
func FuzzPCIConfig(f *testing.F) {
	f.Add([]byte(fakesys.PCIConfig{ReadRequest: 4096, ACS: 0x1d}.Config()))
	f.Add([]byte(fakesys.Gone))
	f.Add(bytes.Repeat([]byte{0x40}, 4096))
	f.Fuzz(func(t *testing.T, config []byte) {
		c, err := parsePCIConfig(bytes.NewReader(config))
		if err != nil && !errors.Is(err, errConfig) {
			t.Error(err)
		}
		if c.Gone && c.Express || !c.Express && (c.ReadRequest != 0 || c.HasACS || c.Extended) || c.ACS != 0 && !c.HasACS || c.Express && (c.ReadRequest < 128 || c.ReadRequest > 16384) {
			t.Errorf("%+v", c)
		}
	})
}
