// Api is the Kubernetes API server of package kubetest as a process of its own, for
// measurements. It writes a kubeconfig to the directory that is its argument, serves until
// its standard input ends, and answers each line there with one line:
//
//	definition NAME CONFIG  adds a NetworkAttachmentDefinition to the namespace bench
//	pod NAME                adds a pod to that namespace and the node n1; the answer is its UID
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/internal/kubetest"
)

func main() {
	s := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	defer s.Close()
	if _, err := s.Kubeconfig(os.Args[1]); err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(answer(s, strings.TrimSuffix(line, "\n")))
	}
}

func answer(s *kubetest.Server, line string) string {
	word, rest, _ := strings.Cut(line, " ")
	name, config, _ := strings.Cut(rest, " ")
	switch word {
	case "definition":
		kubetest.Put(s, kubetest.Definition{Namespace: "bench", Name: name, Config: config})
		return "ok"
	case "pod":
		p := kubetest.Put(s, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "bench", Name: name,
				Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "no-op"},
			},
			Spec: corev1.PodSpec{NodeName: "n1"},
		})
		return string(p.UID)
	}
	panic("unknown: " + line)
}
