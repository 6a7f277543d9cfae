package gpu

import (
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
