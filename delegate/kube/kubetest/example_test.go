package kubetest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

// The code under test patches a pod: first the wrong one, then while the server fails,
// then it succeeds.
func Example() {
	s := kubetest.NewServer()
	defer s.Close()
	pod := s.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web"}})
	client, err := typedcorev1.NewForConfig(s.Config())
	if err != nil {
		fmt.Println(err)
		return
	}
	patch := func(uid types.UID) error {
		data := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{"key":"value"}}}`, uid)
		_, err := client.Pods("blue").Patch(context.Background(), "web", types.MergePatchType, data, metav1.PatchOptions{}, "status")
		return err
	}

	fmt.Println("another pod:", apierrors.IsInvalid(patch("other")))
	heal := s.Break(kubetest.Fault{Verb: "patch", Resource: "pods/status", Status: 500})
	fmt.Println("out of order:", apierrors.IsInternalError(patch(pod.UID)))
	heal()
	fmt.Println("healed:", patch(pod.UID) == nil, s.Pod("blue", "web").Annotations)
	fmt.Println("requests:", s.Count("patch", "pods/status"), "of", s.Count("", ""))
	// Output:
	// another pod: true
	// out of order: true
	// healed: true map[key:value]
	// requests: 3 of 3
}
