// Writes each object of standard input as Kubernetes' Go types write it in protobuf, and in JSON what they read of that.
package main

import (
	"bytes"
	"encoding/json"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type written struct {
	Protobuf []byte          `json:"protobuf"`
	JSON     json.RawMessage `json:"json"`
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func write(types *runtime.Scheme, raw json.RawMessage) written {
	var said struct{ APIVersion, Kind string }
	must(json.Unmarshal(raw, &said))
	object, err := types.New(schema.FromAPIVersionAndKind(said.APIVersion, said.Kind))
	must(err)
	must(json.Unmarshal(raw, object))
	var buffer bytes.Buffer
	serializer := protobuf.NewSerializer(types, types)
	must(serializer.Encode(object, &buffer))
	read, _, err := serializer.Decode(buffer.Bytes(), nil, nil)
	must(err)
	text, err := json.Marshal(read)
	must(err)
	return written{Protobuf: buffer.Bytes(), JSON: text}
}

func main() {
	types := scheme.Scheme
	must(apiextensions.AddToScheme(types))
	must(apiregistration.AddToScheme(types))
	var objects []json.RawMessage
	must(json.NewDecoder(os.Stdin).Decode(&objects))
	found := make([]written, 0, len(objects))
	for _, raw := range objects {
		found = append(found, write(types, raw))
	}
	must(json.NewEncoder(os.Stdout).Encode(found))
}
