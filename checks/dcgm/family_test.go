package dcgm

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/gpu" // its findings can come from every check of GPUs

	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

func TestMain(m *testing.M) { checktest.RunTests(m) }

func TestFamily(t *testing.T) { checktest.Family(t) }

func TestFamilyAll(t *testing.T) {
	tier.All(t)
	checktest.FamilyAll(t)
}
