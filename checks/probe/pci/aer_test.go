package pci

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestAER(t *testing.T) {
	t.Parallel()
	dir := "sys/bus/pci/devices/0000:c1:00.0/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		dir + "aer_dev_correctable": "RxErr 1\nBadTLP 2\nTOTAL_ERR_COR 3\n", dir + "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 4\n", dir + "aer_dev_fatal": "Undefined 5\nTOTAL_ERR_FATAL 5\n",
		"sys/bus/pci/devices/0000:c5:00.0/aer_dev_correctable": "x\n", "sys/bus/pci/devices/0000:c5:00.0/aer_dev_fatal": "TOTAL_ERR_FATAL 5\n",
		"sys/bus/pci/devices/0000:c2:00.0/aer_dev_fatal/": "", "sys/bus/pci/devices/0000:c3:00.0/aer_dev_fatal": "\x00\xff",
	}))
	for address, want := range map[string]struct {
		a     AER
		known bool
		err   string
	}{
		"0000:c1:00.0": {AER{3, 4, 5}, true, ""},
		"0000:c2:00.0": {AER{}, false, "read /sys/bus/pci/devices/0000:c2:00.0/aer_dev_fatal: is a directory"},
		"0000:c3:00.0": {AER{}, false, "parse /sys/bus/pci/devices/0000:c3:00.0/aer_dev_fatal: invalid argument"},
		"0000:c4:00.0": {},
		"0000:c5:00.0": {AER{Fatal: 5}, true, "parse /sys/bus/pci/devices/0000:c5:00.0/aer_dev_correctable: invalid argument"},
	} {
		if a, known, err := ReadAER(h, address); a != want.a || known != want.known || probetest.Message(err) != want.err {
			t.Errorf("%s: %+v, %v, %v; want %+v", address, a, known, err, want)
		}
	}
}

func TestAERByName(t *testing.T) {
	t.Parallel()
	dir := "sys/bus/pci/devices/0000:c1:00.0/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{dir + "aer_dev_correctable": "RxErr 0\nBadTLP 2\nTimeout x\nTOTAL_ERR_COR 2\n", dir + "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0\nUnsupReq 4\n"}))
	_, names, _, err := AERByName(h, "0000:c1:00.0")
	want := AERNames{Corrected: map[string]uint64{"BadTLP": 2}, NonFatal: map[string]uint64{"UnsupReq": 4}}
	if diff := cmp.Diff(want, names); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Each parsed number follows the name in the text.
func FuzzParseAER(f *testing.F) {
	f.Add([]byte("RxErr 1\nTOTAL_ERR_COR 3\n"))
	f.Add([]byte("TOTAL_ERR_COR -3"))
	f.Add([]byte("TOTAL_ERR_COR 18446744073709551616\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, names, ok := parseAER(data, "TOTAL_ERR_COR")
		if again, _, _ := parseAER([]byte("TOTAL_ERR_COR "+strconv.FormatUint(n, 10)), "TOTAL_ERR_COR"); ok && again != n {
			t.Errorf("%q: %d, then %d", data, n, again)
		}
		if len(names) > aerNames || names["TOTAL_ERR_COR"] != 0 {
			t.Errorf("%q: %v", data, names)
		}
	})
}
