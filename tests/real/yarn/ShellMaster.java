import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** An application's master: it asks for tasks, starts a command in each, and stays. Lost tasks are not replaced. */
public final class ShellMaster {
  private ShellMaster() {}

  public static void main(String[] arguments) throws Exception {
    int wanted = Integer.parseInt(arguments[0]);
    int megabytes = Integer.parseInt(arguments[1]);
    Configuration configuration = new YarnConfiguration();
    AMRMClient<ContainerRequest> manager = AMRMClient.createAMRMClient();
    manager.init(configuration);
    manager.start();
    NMClient node = NMClient.createNMClient();
    node.init(configuration);
    node.start();
    manager.registerApplicationMaster("localhost", 0, "");
    List<ContainerRequest> requests = new ArrayList<>();
    for (int number = 0; number < wanted; number++) {
      requests.add(new ContainerRequest(Resource.newInstance(megabytes, 1), null, null, Priority.newInstance(0)));
    }
    requests.forEach(manager::addContainerRequest);
    int started = 0;
    while (true) {
      for (Container one : manager.allocate(0.5f).getAllocatedContainers()) {
        manager.removeContainerRequest(requests.get(started));
        started++;
        ContainerLaunchContext launch =
            ContainerLaunchContext.newInstance(
                Collections.emptyMap(),
                Collections.emptyMap(),
                Collections.singletonList(arguments[2]),
                Collections.emptyMap(),
                null,
                Collections.emptyMap());
        node.startContainer(one, launch);
        if (started == wanted) {
          System.out.println("all tasks are started");
        }
      }
      Thread.sleep(500);
    }
  }
}
