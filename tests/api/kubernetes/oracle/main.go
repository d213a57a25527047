// Reads a JSON list of pods and prints, for each, the numbers that Kubernetes' own code computes.
package main

import (
	"encoding/json"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type answer struct {
	Pod      json.RawMessage  `json:"pod"`
	Requests map[string]int64 `json:"requests"` // with what the status reports
	Limits   map[string]int64 `json:"limits"`
	Spec     map[string]int64 `json:"spec"` // requests by the spec alone
	Non0     [2]int64         `json:"non0"` // cpu and memory for scoring
	QOS      string           `json:"qos"`
}

func units(list v1.ResourceList) map[string]int64 {
	counts := map[string]int64{}
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			counts[string(name)] = quantity.MilliValue()
		} else {
			counts[string(name)] = quantity.Value()
		}
	}
	return counts
}

func main() {
	var pods []json.RawMessage
	must(json.NewDecoder(os.Stdin).Decode(&pods))
	answers := []answer{}
	for _, raw := range pods {
		var pod v1.Pod
		must(json.Unmarshal(raw, &pod))
		// Each question gets its own copy: adding overhead to a pod-level amount that Go holds as a big decimal
		// (1.5Gi) changes the pod itself, so that a second call would answer more.
		info, err := framework.NewPodInfo(pod.DeepCopy())
		must(err)
		scored := info.CalculateResource()
		live := resource.PodResourcesOptions{UseStatusResources: true}
		answers = append(answers, answer{
			Pod:      raw,
			Requests: units(resource.PodRequests(pod.DeepCopy(), live)),
			Limits:   units(resource.PodLimits(pod.DeepCopy(), live)),
			Spec:     units(resource.PodRequests(pod.DeepCopy(), resource.PodResourcesOptions{})),
			Non0:     [2]int64{scored.Non0CPU, scored.Non0Mem},
			QOS:      string(qos.ComputePodQOS(pod.DeepCopy())),
		})
	}
	must(json.NewEncoder(os.Stdout).Encode(answers))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
