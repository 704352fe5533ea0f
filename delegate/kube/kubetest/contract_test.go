package kubetest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/kube/kubetest/contract"
)

// The cases hold for kubetest, and for the server of the kubeconfig file
// METACNI_CONTRACT if there is one.
func TestTheServerForTestsAnswersAsARealOne(t *testing.T) {
	t.Parallel()
	s := kubetest.NewServer()
	t.Cleanup(s.Close)
	s.SetToken("known")
	config := s.Config()
	if file := os.Getenv("METACNI_CONTRACT"); file != "" {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", file); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range contract.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := c.Run(ctx, config); errors.Is(err, contract.ErrUnsupported) {
				t.Skip(err)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
