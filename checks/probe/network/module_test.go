package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// put writes fields at their offsets.
func put(size int, fields map[int]string) string {
	data := make([]byte, size)
	for i := range data {
		data[i] = ' '
	}
	for i := range min(128, size) {
		data[i] = 0
	}
	for at, text := range fields {
		copy(data[at:], text)
	}
	return string(data)
}

// These are memories of modules in the layouts of SFF-8636, CMIS and SFF-8472.
var (
	qsfp28 = put(256, map[int]string{0: "\x11", 22: "\x29\x80", 34: "\x27\x10\x13\x88\x00\x00\x27\x10", 50: "\x27\x10\x27\x10\x27\x10\x27\x10",
		128: "\x11", 147: "\x00", 148: "NVIDIA          ", 168: "MMA1B00-C100D   ", 196: "MT2214FT06789   "})
	qsfpCopper = put(256, map[int]string{0: "\x11", 22: "\x00\x00", 128: "\x11", 147: "\xa0", 148: "NVIDIA          ", 168: "MCP1650-V001E30 ", 196: "MT2214VS01234   "})
	osfp       = put(384, map[int]string{0: "\x19", 2: "\x00", 14: "\x31\x40", 128: "\x19", 129: "NVIDIA          ", 148: "MMA4Z00-NS      ", 166: "MT2240FT00001   ",
		256 + 154 - 128: "\x27\x10\x27\x10\x27\x10\x27\x10\x00\x00\x00\x00\x00\x00\x00\x00", 256 + 186 - 128: "\x27\x10\x27\x10\x00\x01\x27\x10\x00\x00\x00\x00\x00\x00\x00\x00"})
	osfpCopper = put(256, map[int]string{0: "\x19", 2: "\x80", 14: "\x31\x40", 128: "\x19", 129: "NVIDIA          ", 148: "MCP4Y10-N001    ", 166: "MT2240VS00002   "})
	sfp        = put(512, map[int]string{0: "\x03", 20: "FINISAR CORP.   ", 40: "FTLX8574D3BCL   ", 68: "ABC1234         ", 92: "\x68", 256 + 96: "\x1e\x00", 256 + 102: "\x13\x88\x27\x10"})
	sfpNoDiag  = put(256, map[int]string{0: "\x03", 20: "Amphenol        ", 40: "NDAAFF-0003     ", 68: "XYZ             ", 92: "\x00"})
)

func TestModule(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"recorded/module/eth0": qsfp28, "recorded/module/eth1": qsfpCopper, "recorded/module/eth2": osfp, "recorded/module/eth3": osfpCopper,
		"recorded/module/eth4": sfp, "recorded/module/eth5": sfpNoDiag, "recorded/module/eth6": qsfp28[:200], "recorded/module/eth7": put(256, map[int]string{0: "\xff"}), "recorded/module/eth8": "",
	}))
	c := func(n float64) *float64 { return &n }
	for dev, want := range map[string]*Module{
		"eth0": {Form: "QSFP28", Vendor: "NVIDIA", Part: "MMA1B00-C100D", Serial: "MT2214FT06789", Celsius: c(41.5), Receive: []float64{0, -3, -40, 0}, Send: []float64{0, 0, 0, 0}},
		"eth1": {Form: "QSFP28", Vendor: "NVIDIA", Part: "MCP1650-V001E30", Serial: "MT2214VS01234"},
		"eth2": {Form: "OSFP", Vendor: "NVIDIA", Part: "MMA4Z00-NS", Serial: "MT2240FT00001", Celsius: c(49.3), Send: []float64{0, 0, 0, 0, -40, -40, -40, -40}, Receive: []float64{0, 0, -40, 0, -40, -40, -40, -40}},
		"eth3": {Form: "OSFP", Vendor: "NVIDIA", Part: "MCP4Y10-N001", Serial: "MT2240VS00002"},
		"eth4": {Form: "SFP", Vendor: "FINISAR CORP.", Part: "FTLX8574D3BCL", Serial: "ABC1234", Celsius: c(30), Send: []float64{-3}, Receive: []float64{0}},
		"eth5": {Form: "SFP", Vendor: "Amphenol", Part: "NDAAFF-0003", Serial: "XYZ"},
		"eth6": nil, "eth7": nil, "eth8": nil, "eth9": nil,
	} {
		got, err := ReadModule(h, dev)
		if (want == nil) != (err != nil) {
			t.Errorf("%s: %v", dev, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dev, diff)
		}
	}
	m, _ := ReadModule(h, "eth0")
	if got, want := m.String(), "transceiver QSFP28 NVIDIA MMA1B00-C100D, serial MT2214FT06789, 42 C, receives 0.0 -3.0 -40.0 0.0 dBm, sends 0.0 0.0 0.0 0.0 dBm"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// An interface without a module, and a missing one, have none; nothing is changed.
func TestModuleOfThisMachine(t *testing.T) {
	t.Parallel()
	for _, dev := range []string{"lo", "no-such-device0"} {
		if m, err := ReadModule(probe.NewHost("/"), dev); err == nil {
			t.Errorf("%s: %v", dev, m)
		}
	}
}

func FuzzModule(f *testing.F) {
	for _, seed := range []string{qsfp28, osfp, sfp, sfpNoDiag, "", "\x19"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readModule(func(page, i2c byte, offset, length int) ([]byte, error) {
			if page != 0 || i2c != moduleI2C {
				offset = 256 + offset%128
			}
			return data[min(len(data), offset):min(len(data), offset+length)], nil
		})
		if err == nil {
			for _, r := range m.String() {
				if r < ' ' || r > '~' {
					t.Errorf("%q", m)
				}
			}
		}
	})
}

// packet returns a message of netlink.
func packet(kind uint16, seq uint32, body []byte) []byte {
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, 0)
	msg = binary.NativeEndian.AppendUint32(msg, seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	return append(msg, body...)
}

// reporter returns an answer of devlink about one reporter.
func reporter(device, name string, state byte, errs uint64) []byte {
	inner := putText(nil, unix.DEVLINK_ATTR_HEALTH_REPORTER_NAME, name)
	inner = putAttr(inner, unix.DEVLINK_ATTR_HEALTH_REPORTER_STATE, []byte{state})
	inner = putAttr(inner, unix.DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT, binary.NativeEndian.AppendUint64(nil, errs))
	inner = putAttr(inner, unix.DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT, binary.NativeEndian.AppendUint64(nil, errs/2))
	body := putText([]byte{unix.DEVLINK_CMD_HEALTH_REPORTER_GET, 1, 0, 0}, unix.DEVLINK_ATTR_BUS_NAME, "pci")
	body = putText(body, unix.DEVLINK_ATTR_DEV_NAME, device)
	return putAttr(body, unix.DEVLINK_ATTR_HEALTH_REPORTER|unix.NLA_F_NESTED, inner)
}

func TestDevlinkHealth(t *testing.T) {
	t.Parallel()
	var data []byte
	for _, body := range [][]byte{
		reporter("0000:23:00.0", "fw", 0, 0), reporter("0000:23:00.0", "fw_fatal", 1, 0), reporter("0000:23:00.0", "tx", 0, 4), reporter("0000:24:00.0", "rx", 1, 9),
	} {
		data = append(data, packet(20, 7, body)...)
	}
	data = append(data, packet(20, 6, reporter("0000:23:00.0", "rx", 1, 9))...) // another request's
	var answers [][]attr
	if done, err := parseNetlink(data, 7, collectAttrs(&answers)); done || err != nil {
		t.Errorf("not at its end: %v, %v", done, err)
	}
	data = append(data, packet(unix.NLMSG_DONE, 7, make([]byte, 4))...)
	answers = nil
	done, err := parseNetlink(data, 7, collectAttrs(&answers))
	if !done || err != nil {
		t.Fatalf("%v, %v", done, err)
	}
	want := []Reporter{{Name: "fw_fatal", State: "error"}, {Name: "tx", State: "healthy", Errors: 4, Recovers: 2}}
	if diff := cmp.Diff(want, parseReporters(answers, "pci", "0000:23:00.0")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	code := binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff-uint32(unix.EOPNOTSUPP)+1))
	if done, err := parseNetlink(packet(unix.NLMSG_ERROR, 7, code), 7, collectAttrs(&answers)); !done || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("refused: %v, %v", done, err)
	}
	if done, err := parseNetlink(append(packet(20, 7, nil), "\x02\x00\x00\x00xxxxxxxxxxxx"...), 7, collectAttrs(&answers)); !done || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("garbage: %v, %v", done, err)
	}
}

func FuzzGenl(f *testing.F) {
	f.Add(packet(20, 7, reporter("0000:23:00.0", "fw", 1, 3)))
	f.Add(packet(unix.NLMSG_ERROR, 7, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var answers [][]attr
		_, _ = parseNetlink(data, 7, collectAttrs(&answers))
		for _, r := range parseReporters(answers, "pci", "0000:23:00.0") {
			if r.Name == "" {
				t.Errorf("%+v", r)
			}
		}
	})
}

// The real kernel answers that there is no device with that address.
func TestGenlOfThisMachine(t *testing.T) {
	t.Parallel()
	g, err := dialGenl()
	if err != nil {
		t.Skip("no generic netlink:", err)
	}
	defer g.close()
	if n, err := g.findFamily("nlctrl"); err != nil || n != unix.GENL_ID_CTRL {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := g.findFamily("no such family"); err == nil {
		t.Error("a family that is not there was found")
	}
	if list, _ := DevlinkHealth("0000:ff:1f.7"); len(list) > 0 {
		t.Errorf("%v", list)
	}
}

func TestSlot(t *testing.T) {
	t.Parallel()
	at := "sys/devices/pci0000:30/0000:30:01.0/0000:31:00.0/0000:32:00.0/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"sys/bus/pci/slots/7/address":               "0000:31:00\n",
		"sys/bus/pci/slots/12-1/address":            "0000:44:00\n",
		"sys/bus/pci/slots/broken/address/":         "",
		at + "class":                                "0x020700\n",
		"sys/devices/pci0000:44/0000:44:00.0/class": "0x020700\n",
		"sys/devices/pci0000:55/0000:55:00.0/label": "Onboard\x1b LAN\n",
		"sys/devices/pci0000:66/0000:66:00.0/class": "0x020700\n",
	}))
	for _, d := range []string{"pci0000:30/0000:30:01.0/0000:31:00.0/0000:32:00.0", "pci0000:44/0000:44:00.0", "pci0000:55/0000:55:00.0", "pci0000:66/0000:66:00.0"} {
		probetest.Mkdir(t, h.Path("/sys/bus/pci/devices"))
		if err := os.Symlink("../../../devices/"+d, h.Path("/sys/bus/pci/devices/"+d[len(d)-12:])); err != nil {
			t.Fatal(err)
		}
	}
	for address, want := range map[string]string{"0000:32:00.0": "7", "0000:44:00.0": "12-1", "0000:55:00.0": "Onboard LAN", "0000:66:00.0": "", "0000:77:00.0": ""} {
		if got := pci.SlotName(h, address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

func TestLLDP(t *testing.T) {
	t.Parallel()
	one := `"eth13":{"via":"LLDP","chassis":{"leaf03":{"id":{"type":"mac","value":"b8:59:9f:00:00:01"},"descr":"Cumulus"}},"port":{"id":{"type":"ifname","value":"swp12"},"descr":"to gpu07"}}`
	nameless := `"eth14":{"chassis":{"id":{"type":"mac","value":"b8:59:9f:00:00:02"}},"port":{"descr":"Ethernet1/4"}}`
	for text, want := range map[string]map[string]string{
		fmt.Sprintf(`{"lldp":{"interface":{%s}}}`, one):                  {"eth13": "leaf03 swp12"},
		fmt.Sprintf(`{"lldp":{"interface":[{%s},{%s}]}}`, one, nameless): {"eth13": "leaf03 swp12", "eth14": "b8:59:9f:00:00:02 Ethernet1/4"},
		`{"lldp":{}}`:                       nil,
		`{"lldp":{"interface":"x"}}`:        nil,
		`{"lldp":{"interface":{"eth1":3}}}`: {},
		`garbage`:                           nil, ``: nil,
	} {
		if diff := cmp.Diff(want, parseLLDP([]byte(text))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	h := probe.NewHost(probetest.Tree(t, map[string]string{"recorded/lldp.json": fmt.Sprintf(`{"lldp":{"interface":{%s}}}`, one)}))
	if got, err := Neighbors(t.Context(), h, 0); err != nil || got["eth13"] != "leaf03 swp12" {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzLLDP(f *testing.F) {
	f.Add([]byte(`{"lldp":{"interface":[{"eth13":{"chassis":{"leaf03":{"id":{"value":"x"}}},"port":{"id":{"value":"swp12"}}}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for dev, end := range parseLLDP(data) {
			if end == "" {
				t.Errorf("%q has nothing", dev)
			}
		}
	})
}
